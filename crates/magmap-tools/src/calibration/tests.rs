use super::*;
use magmap::sensing::reading::{MagneticField, Stamp};
use nalgebra::Point3;
use std::f64::consts::{FRAC_PI_2, PI};

/// Where the sensor was, and the heading of a body that it is not turned on; the field is for the caller to set.
pub(super) fn observation(x: f64, y: f64, heading: f64) -> Observation {
    Observation {
        stamp: Stamp::default(),
        position: Point3::new(x, y, 0.0),
        orientation: UnitQuaternion::from_axis_angle(&Vector3::z_axis(), heading).to_rotation_matrix().into_inner(),
        speed: 0.5,
        field: MagneticField::from_microtesla(Vector3::zeros()),
        strength: 0.0,
        readings: 1,
    }
}

/// Of a drive that determines nothing.
pub(super) fn empty(mount: Isometry3<f64>) -> Calibration {
    let unit = Unit { median_strength: 50.0, is_like_earth: true, suspected: None };
    Calibration {
        readings: 0,
        used_readings: 0,
        path: 0.0,
        headings: [0.0; 8],
        unit,
        hard_iron: None,
        yaw: None,
        delay: None,
        agreement: None,
        speed_bias: None,
        inflation: 1.0,
        shortcomings: Vec::new(),
        mount,
    }
}

/// An optimum that determines everything but the vertical component of the hard iron.
fn found() -> Found {
    let variances = Vector3::new(0.01, 0.04, HARD_IRON.powi(2));
    Found {
        yaw: 0.0,
        delay: 0.05,
        covariance: Some(Matrix2::new(1e-4, 0.0, 0.0, 4e-4)),
        inflation: 1.0,
        lead: 8.0,
        hard_iron: Coefficients { mean: Vector3::new(1.0, 5.0, 0.1), covariance: Matrix3::from_diagonal(&variances) },
        speed_bias: Some(Coefficients { mean: Vector3::new(4.0, 0.0, -3.0), covariance: Matrix3::identity() }),
    }
}

fn taken(found: &Found) -> Calibration {
    let mut calibration = empty(Isometry3::identity());
    calibration.take(found, &Config::default());
    calibration
}

#[test]
fn the_maximum_is_found_inside_and_at_either_end_with_no_more_evaluations_than_steps() {
    for peak in [-0.7, 0.0, 0.4] {
        let mut evaluations = 0.0;
        let parabola = |x: f64| {
            evaluations += 1.0;
            Ok(-(x - peak).powi(2))
        };
        let best = maximum(0.1, 1.0, 20.0, parabola).unwrap();
        // Each of the steps after the first two leaves 0.618 of an interval of 2.
        assert!((best - peak).abs() < 2.0 * 0.618_f64.powi(18), "{best}");
        assert_eq!(evaluations, 20.0);
    }
    for (slope, end) in [(1.0, 1.1), (-1.0, -0.9)] {
        let best = maximum(0.1, 1.0, 20.0, |x| Ok(slope * x)).unwrap();
        assert!((best - end).abs() < 1e-3, "{best}");
    }
    let broken = maximum(0.0, 1.0, 20.0, |x| if x > 0.5 { Err(Error::NotPositiveDefinite) } else { Ok(x) });
    assert_eq!(broken, Err(Error::NotPositiveDefinite));
}

#[test]
fn a_mount_is_turned_about_the_vertical_of_the_body_wherever_the_sensor_points() {
    let mount = Isometry3::new(Vector3::new(0.1, 0.0, 0.2), Vector3::x() * FRAC_PI_2);
    let turned = turned(&mount, 0.3);
    assert_eq!(turned.translation, mount.translation);
    // The sensor's y axis points up before and after.
    assert!((turned.rotation * Vector3::y() - Vector3::z()).norm() < 1e-12);
    let x = turned.rotation * Vector3::x();
    assert!((x.y.atan2(x.x) - 0.3).abs() < 1e-12, "{x}");
}

#[test]
fn the_stretch_that_is_evaluated_is_the_one_with_the_most_crossings_or_else_the_first() {
    let straight = (0..375).map(|i| observation(0.1 * f64::from(i), 0.0, 0.0));
    let to_and_fro = (0..300).map(|i| {
        let (lap, step) = (i / 30, f64::from(i % 30));
        let x = if lap % 2 == 0 { step } else { 29.0 - step };
        observation(37.5 + 0.1 * x, 0.0, if lap % 2 == 0 { 0.0 } else { PI })
    });
    let drive: Vec<Observation> = straight.clone().chain(to_and_fro).collect();
    let chosen = most_telling(&drive, &Isometry3::identity());
    assert_eq!((chosen.len(), chosen[0].position.x), (MOST_AVERAGES, 37.5));
    let straight: Vec<Observation> = straight.collect();
    assert_eq!(most_telling(&straight, &Isometry3::identity())[0].position.x, 0.0);
    assert_eq!(most_telling(&straight[..70], &Isometry3::identity()).len(), 70);
}

#[test]
fn what_the_drive_determines_is_taken_and_what_it_does_not_is_named() {
    let all = taken(&found());
    assert_eq!(all.yaw, Some(Estimate { value: 0.0, sd: 0.01 }));
    assert_eq!(all.delay, Some(Estimate { value: 0.05, sd: 0.02 }));
    assert!(all.hard_iron.is_some() && all.shortcomings.is_empty(), "{all:?}");

    // Another yaw is nearly as probable: without a yaw there is no delay either.
    let doubtful = taken(&Found { lead: 6.0, ..found() });
    assert!(doubtful.yaw.is_none() && doubtful.delay.is_none() && doubtful.hard_iron.is_some(), "{doubtful:?}");
    assert!(doubtful.shortcomings.iter().any(|reason| reason.contains("the yaw of the mount")), "{doubtful:?}");

    let at_the_edge = taken(&Found { covariance: None, ..found() });
    assert!(at_the_edge.yaw.is_none() && at_the_edge.hard_iron.is_none() && at_the_edge.speed_bias.is_none());
    assert_eq!(at_the_edge.shortcomings.len(), 3);
}

#[test]
fn errors_that_readings_share_make_every_deviation_and_the_needed_lead_greater() {
    let shared = taken(&Found { inflation: 4.0, lead: 29.0, ..found() });
    assert_eq!(shared.inflation, 2.0);
    assert_eq!(shared.yaw.unwrap().sd, 0.02);
    let [x, y, vertical] = shared.hard_iron.unwrap().sd;
    assert!((x.unwrap() - 0.2).abs() < 1e-12 && (y.unwrap() - 0.4).abs() < 1e-12 && vertical.is_none());
    assert!(taken(&Found { inflation: 4.0, lead: 27.0, ..found() }).yaw.is_none());
    // A squared length of 25, with variances of one and of two: the limit is 16.27.
    assert!(taken(&found()).speed_bias.unwrap().is_significant);
    let doubtful = taken(&Found { inflation: 2.0, lead: 29.0, ..found() }).speed_bias.unwrap();
    assert!(!doubtful.is_significant && (doubtful.sd[0] - 2_f64.sqrt()).abs() < 1e-12, "{doubtful:?}");
}

#[test]
fn hard_iron_is_along_the_axes_of_the_sensor_and_of_the_readings_before_the_settings() {
    // The sensor's x axis points along the body's y axis.
    let quarter = Isometry3::rotation(Vector3::z() * FRAC_PI_2);
    let of = |config: &Config| empty(quarter).hard_iron_of(&found(), config).unwrap();
    let plain = of(&Config::default());
    let expected = [5.0, -1.0, 0.0];
    assert!((0..3).all(|axis| (plain.value[axis] - expected[axis]).abs() < 1e-12), "{plain:?}");
    assert!((plain.sd[0].unwrap() - 0.2).abs() < 1e-12 && (plain.sd[1].unwrap() - 0.1).abs() < 1e-12, "{plain:?}");

    let mut config = Config::default();
    config.sensor.hard_iron = [1.0, 2.0, 3.0];
    config.sensor.soft_iron = [2.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
    let corrected = of(&config);
    let expected = [1.0 + 2.5, 2.0 - 1.0, 3.0];
    assert!((0..3).all(|axis| (corrected.value[axis] - expected[axis]).abs() < 1e-12), "{corrected:?}");
    assert!((corrected.sd[0].unwrap() - 0.1).abs() < 1e-12, "{corrected:?}");

    // One direction alone is verified by nothing.
    let covariance = Matrix3::from_diagonal(&Vector3::new(0.01, 900.0, 900.0));
    let one = Found { hard_iron: Coefficients { covariance, ..found().hard_iron }, ..found() };
    assert_eq!(empty(quarter).hard_iron_of(&one, &Config::default()), None);
}

#[test]
fn a_yaw_within_two_deviations_leaves_the_mount_as_it_was() {
    let mount = Isometry3::translation(0.1, 0.0, 0.2);
    let with = |value| Calibration { yaw: Some(Estimate { value, sd: 0.02 }), ..empty(mount) };
    assert_eq!(with(-0.039).turned_mount(), mount);
    assert_eq!(with(-0.041).turned_mount(), turned(&mount, -0.041));
}

#[test]
fn a_drive_without_readings_is_an_error() {
    let error = calibrate(&[], Isometry3::identity(), &Config::default(), |_| {}).unwrap_err();
    assert_eq!(error, Error::NoReadings);
}
