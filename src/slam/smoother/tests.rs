use std::f64::consts::SQRT_2;

use super::elimination::{GIVEN, Unknowns};
use super::*;
use crate::slam::chain::{DELAY, DRIFT, MEAN, SHARED, joined};
use crate::slam::{FieldPrior, IRON};
use nalgebra::{DMatrix, DVector, Rotation2, Vector2, Vector3};

const FIELD: FieldPrior = FieldPrior { variance_below: 80.0, variance_above: 30.0, lengthscale: 0.9 };

/// Time between two poses of a path, in seconds.
const STEP: f64 = 0.2;

/// A smooth field with sources below and above, and a sensor with a hard iron.
fn reading(pose: &PlanePose) -> Vector3<f64> {
    let source = |x: f64, y: f64, z: f64, strength: f64| {
        let d = Vector3::new(pose.x - x, pose.y - y, -z);
        d * (strength / d.norm().powi(3))
    };
    let sources = [(0.4, 0.3, -1.0, 25.0), (1.5, 1.2, -0.9, -22.0), (2.2, 0.1, -1.1, 18.0), (0.9, 1.7, 1.1, 20.0)];
    let field: Vector3<f64> = sources.into_iter().map(|(x, y, z, strength)| source(x, y, z, strength)).sum();
    let turned = Rotation2::new(-pose.z) * field.xy();
    Vector3::new(turned.x + 3.0, turned.y - 2.0, field.z - 40.0)
}

/// A path through a room in loops that cross, 10 cm a step.
fn path(count: usize) -> Vec<PlanePose> {
    let at = |step: usize| {
        let t = 0.1 * step as f64;
        Vector2::new(1.2 + 1.1 * (0.9 * t).sin(), 0.9 + 0.8 * (0.55 * t).cos())
    };
    let pose = |step: usize| {
        let ahead = at(step + 1) - at(step);
        let place = at(step);
        Vector3::new(place.x, place.y, ahead.y.atan2(ahead.x))
    };
    (0..count).map(pose).collect()
}

/// Readings on this path, and odometry with errors.
fn links(path: &[PlanePose], scale: f64, noise: f64, seed: u64) -> Vec<Link> {
    let mut phase = seed as f64;
    // Neither regular nor random: of mean zero and variance one.
    let mut normal = || {
        phase += 1.0;
        (phase * phase * 0.7).sin() * SQRT_2
    };
    let link = |(index, pose): (usize, &PlanePose)| {
        let before = index.checked_sub(1).map_or(pose, |before| &path[before]);
        let mut link = Link::new(before, pose, STEP, reading(pose));
        link.movement = link.movement * (1.0 + scale) + Vector2::new(normal(), normal()) * noise;
        link.turn += 3.0 * noise * normal();
        link.field += Vector3::new(normal(), normal(), normal()) * 0.3;
        link
    };
    joined(path.iter().enumerate().map(link).collect())
}

/// A short path in several segments and tiles, away from the optimum.
fn unfinished() -> Smoother {
    let mut prior = Prior::new(FIELD, 4.0);
    prior.tile = 1.0;
    let mut smoother = Smoother::new(prior, path(1)[0], links(&path(46), 0.02, 0.002, 3));
    smoother.extend().unwrap();
    smoother.extend().unwrap();
    smoother.is_delay_estimated = true;
    for (index, pose) in smoother.poses.iter_mut().enumerate().skip(1) {
        *pose += Vector3::new((index as f64).sin(), (1.7 * index as f64).cos(), (0.3 * index as f64).sin()) * 0.01;
    }
    for (index, counts) in smoother.segments.iter_mut().flat_map(|segment| &mut segment.counts).enumerate() {
        *counts = index % 5 < 3;
    }
    smoother.evaluate(&Window::whole(), 0.0).unwrap();
    smoother
}

/// Changes one of all unknowns, in the order of poses, shared ones and fields.
fn change(smoother: &mut Smoother, index: usize, by: f64) {
    let poses = 3 * smoother.poses.len();
    if index < poses {
        smoother.poses[index / 3][index % 3] += by;
    } else if index < poses + SHARED {
        smoother.shared[index - poses] += by;
    } else {
        let mut fields = smoother.tiles.iter_mut().flat_map(|tile| &mut tile.field);
        *fields.nth(index - poses - SHARED).unwrap() += by;
    }
}

/// The derivative of some numbers in an unknown, by central differences.
fn derivative(
    smoother: &mut Smoother,
    index: usize,
    step: f64,
    numbers: impl Fn(&Smoother) -> Vec<f64>,
) -> DVector<f64> {
    change(smoother, index, step);
    let above = DVector::from_vec(numbers(smoother));
    change(smoother, index, -2.0 * step);
    let below = DVector::from_vec(numbers(smoother));
    change(smoother, index, step);
    (above - below) / (2.0 * step)
}

fn unknowns(smoother: &Smoother) -> usize {
    3 * smoother.poses.len() + SHARED + smoother.tiles.iter().map(|tile| tile.field.len()).sum::<usize>()
}

/// The numbers for all unknowns, in the same order.
fn listed(unknowns: &Unknowns) -> Vec<f64> {
    let poses = unknowns.poses.iter().flat_map(|pose| pose.iter().copied());
    poses.chain(unknowns.shared.iter().copied()).chain(unknowns.fields.iter().flatten().copied()).collect()
}

/// The objective where the variances of the readings stay as they are, as the gradient takes them.
fn cost_with_variances_kept(smoother: &Smoother) -> f64 {
    let mut smoother = smoother.clone();
    let mut cost = 0.5 * smoother.shared.component_div(&smoother.prior.shared).norm_squared();
    let Smoother { prior, links, poses, shared, tiles, segments, .. } = &mut smoother;
    let problem = Problem { noise: prior.noise, odometry: &prior.odometry, links };
    for (index, tile) in tiles.iter_mut().enumerate() {
        tile.forget();
        tile.make_room();
        let potential = tile.potential();
        for segment in segments.iter_mut().filter(|segment| segment.tile == index) {
            segment.linearised.poses = segment.part(poses).to_vec();
            segment.add_information(&segment.features(&tile.basis), 1.0, tile.information_mut());
            segment.descend(&problem, At { poses, shared, potential: &potential }, &tile.basis);
            cost += segment.cost;
        }
        tile.factor().unwrap();
        cost += tile.cost + 0.5 * linalg::squared_norm(&tile.field);
    }
    cost
}

#[test]
fn the_gradient_is_that_of_finite_differences_for_every_kind_of_unknown() {
    let mut smoother = unfinished();
    let (descent, count, poses) =
        (listed(&smoother.descent(&Window::whole())), unknowns(&smoother), 3 * smoother.poses.len());
    assert!(smoother.segments.len() > 3 && smoother.tiles.len() > 1);
    // A dozen of each kind: poses, shared, and fields.
    let picked = (0..poses).step_by(7).chain(poses..poses + SHARED).chain((poses + SHARED..count).step_by(count / 12));
    for index in picked {
        let expected = -derivative(&mut smoother, index, 1e-5, |smoother| vec![cost_with_variances_kept(smoother)])[0];
        // The error of a central difference is 2e-11 of the third derivative, which is up to 4e7 for the heavy tails of odometry.
        let tolerance = 1e-3 + 1e-4 * expected.abs();
        assert!((descent[index] - expected).abs() < tolerance, "{index} of {poses}: {} {expected}", descent[index]);
    }
}

/// The second derivatives of Gauss-Newton, dense: reading by reading, and movement by movement, by finite differences.
fn dense(smoother: &Smoother) -> DMatrix<f64> {
    let count = unknowns(smoother);
    let first_field = 3 * smoother.poses.len() + SHARED;
    let shared = first_field - SHARED..first_field;
    let pose = |index: usize| 3 * index..3 * index + 3;
    let mut information = DMatrix::zeros(count, count);
    for (row, deviation) in shared.clone().zip(smoother.prior.shared.iter()) {
        information[(row, row)] += 1.0 / (deviation * deviation);
    }
    (first_field..count).for_each(|index| information[(index, index)] += 1.0);
    // The first pose at its stamp.
    let delay = first_field - SHARED + DELAY;
    let velocity = smoother.links[0].velocity_in_map(&smoother.poses[0]);
    for axis in 0..3 {
        let mut given = DVector::zeros(count);
        (given[axis], given[delay]) = (1.0, velocity[axis]);
        information.ger(GIVEN, &given, &given, 1.0);
    }
    let mut scratch = smoother.clone();
    scratch.segments.clear();
    let mut add = |residual: &dyn Fn(&Smoother) -> Vec<f64>, weights: Vector3<f64>, touched: &[usize]| {
        // Residuals are nearly linear in a hundred thousandth.
        let columns: Vec<_> = touched.iter().map(|&index| derivative(&mut scratch, index, 1e-5, residual)).collect();
        for (i, left) in touched.iter().zip(&columns) {
            for (j, right) in touched.iter().zip(&columns) {
                information[(*i, *j)] += left.component_mul(right).dot(&weights);
            }
        }
    };
    for index in 1..smoother.poses.len() {
        let movement = |smoother: &Smoother| {
            let Smoother { prior, links, poses, shared, .. } = smoother;
            prior.odometry.movement(&poses[index - 1], &poses[index], &links[index], shared)
        };
        let touched: Vec<usize> = pose(index - 1).chain(pose(index)).chain(shared.clone()).collect();
        add(&|smoother| movement(smoother).error.iter().copied().collect(), movement(smoother).weight, &touched);
    }
    for segment in &smoother.segments {
        let before: usize = smoother.tiles[..segment.tile].iter().map(|tile| tile.field.len()).sum();
        let fields = first_field + before..first_field + before + smoother.tiles[segment.tile].field.len();
        for (offset, index) in (segment.first..segment.end).enumerate() {
            let residual = |smoother: &Smoother| {
                let (pose, tile) = (smoother.poses[index], &smoother.tiles[segment.tile]);
                let features = tile.basis.features(&[pose]);
                let axis = |axis: usize| linalg::dot(features.col_as_slice(axis), &tile.field);
                let field = Vector3::new(axis(0), axis(1), axis(2)) + smoother.shared.fixed_rows::<3>(MEAN);
                let turned = Rotation2::new(-pose.z) * field.xy();
                let iron = smoother.links[index].tilt * smoother.shared.fixed_rows::<3>(IRON);
                let expected = Vector3::new(turned.x, turned.y, field.z) + iron;
                (smoother.links[index].field - expected).iter().copied().collect()
            };
            let touched: Vec<usize> = pose(index).chain(shared.clone()).chain(fields.clone()).collect();
            add(&residual, segment.weight(offset), &touched);
        }
    }
    information
}

#[test]
fn the_elimination_of_poses_and_fields_is_a_dense_solution() {
    let smoother = unfinished();
    let information = dense(&smoother).cholesky().unwrap();
    let expected = information.solve(&DVector::from_vec(listed(&smoother.descent(&Window::whole()))));
    let found = listed(&smoother.solve(&Window::whole(), [smoother.descent(&Window::whole())]).unwrap()[0]);
    let largest = expected.amax();
    for (index, (found, expected)) in found.iter().zip(expected.iter()).enumerate() {
        // Derivatives by finite differences are right to a millionth.
        assert!((found - expected).abs() < 1e-5 * largest, "{index}: {found} {expected}");
    }
    // The pose at the stamp is the one where the sensor measured and the way of the delay.
    let inverse = information.inverse();
    let covariances = smoother.covariances_of_given_size().unwrap();
    let last = smoother.covariance_of_last_in(&Window::whole()).unwrap();
    assert!((last - covariances[covariances.len() - 1]).amax() < 1e-9 * last.amax(), "{last}");
    let delay = 3 * smoother.poses.len() + DELAY;
    let (deviation, expected) = (smoother.delay_deviation().unwrap(), inverse[(delay, delay)].sqrt());
    assert!((deviation - expected).abs() < 1e-5 * expected, "{deviation} {expected}");
    for (index, covariance) in covariances.iter().enumerate() {
        let velocity = smoother.links[index].velocity_in_map(&smoother.poses[index]);
        let change = DMatrix::from_fn(3, inverse.nrows(), |axis, unknown| match unknown.checked_sub(3 * index) {
            _ if unknown == delay => velocity[axis],
            Some(of_pose) if of_pose == axis => 1.0,
            _ => 0.0,
        });
        let expected: Matrix3<f64> = (&change * &inverse * change.transpose()).fixed_view::<3, 3>(0, 0).into();
        assert!((covariance - expected).amax() < 1e-5 * (expected.amax() + 1e-6), "{index}: {covariance} {expected}");
    }
}

#[test]
fn the_gradients_of_segments_before_a_window_follow_the_field() {
    let truth = path(240);
    let mut prior = Prior::new(FIELD, 4.0);
    prior.tile = 1.5;
    let mut smoother = Smoother::new(prior, truth[0], links(&truth, 0.02, 0.002, 3));
    smoother.extend().unwrap();
    // All readings count, and no estimate of the whole path from here on.
    smoother.has_returned = true;
    smoother.estimate_again(0).unwrap();
    smoother.next_whole = f64::INFINITY;
    while smoother.poses.len() < truth.len() {
        smoother.extend().unwrap();
    }
    let gradients = |smoother: &Smoother| -> Vec<Vec<f64>> {
        let gradient = |(index, tile): (usize, &Tile)| {
            let mut descent = smoother.descent_of_field(index, &smoother.segments);
            add_to(&mut descent, &tile.outdated);
            descent
        };
        smoother.tiles.iter().enumerate().map(gradient).collect()
    };
    let followed = gradients(&smoother);
    let outdated: f64 = smoother.tiles.iter().map(|tile| linalg::squared_norm(&tile.outdated)).sum();
    smoother.evaluate(&Window::whole(), f64::INFINITY).unwrap();
    let exact = gradients(&smoother);
    let squares = followed.iter().flatten().zip(exact.iter().flatten()).map(|(one, other)| (one - other).powi(2));
    // A segment is linearised up to 3 cm beside its poses, a thirtieth of a lengthscale.
    let error = (squares.sum::<f64>() / outdated).sqrt();
    assert!(outdated > 1.0 && error < 0.1, "{error} of {outdated}");
}

/// Root mean square distance of places.
fn distance(poses: &[PlanePose], truth: &[PlanePose]) -> f64 {
    let squares = poses.iter().zip(truth).map(|(pose, truth)| (pose.xy() - truth.xy()).norm_squared());
    (squares.sum::<f64>() / truth.len() as f64).sqrt()
}

#[test]
fn a_path_that_crosses_itself_is_found_again_however_the_plane_is_cut() {
    let truth = path(400);
    for tile in [8.0, 1.5] {
        let links = links(&truth, 0.03, 0.002, 5);
        let odometry = distance(&dead_reckoning(truth[0], &links), &truth);
        let mut prior = Prior::new(FIELD, 2.0);
        prior.tile = tile;
        let mut smoother = Smoother::new(prior, truth[0], links);
        smoother.run().unwrap();
        let smoothed = distance(&smoother.poses, &truth);
        assert!(odometry > 0.1, "{odometry}");
        // What is left is mostly the turn of the whole path about its start, where the heading is known by a few readings.
        assert!(smoothed < 0.25 * odometry, "tiles of {tile}: {odometry} {smoothed}");
        let iron = smoother.shared().fixed_rows::<2>(IRON).into_owned();
        assert!((iron - Vector2::new(3.0, -2.0)).amax() < 0.5, "{iron}");
        let covariances = smoother.covariances().unwrap();
        assert!(covariances.iter().all(|covariance| covariance.iter().all(|value| value.is_finite())));
    }
}

#[test]
fn readings_that_are_late_bend_no_path_and_show_their_delay() {
    let truth = path(400);
    let run = |links: &[Link], delay_deviation: f64| {
        let mut prior = Prior::new(FIELD, 2.0);
        prior.shared[DELAY] = delay_deviation;
        let mut smoother = Smoother::new(prior, truth[0], links.to_vec());
        smoother.run().unwrap();
        smoother
    };
    let prompt = links(&truth, 0.02, 0.002, 5);
    // Each reading was measured at the pose before.
    let mut late = prompt.clone();
    for (link, steps) in late[1..].iter_mut().zip(truth.windows(2)) {
        link.field += reading(&steps[0]) - reading(&steps[1]);
    }
    let [expected, found, bent] = [run(&prompt, 0.1), run(&late, 0.1), run(&late, 1e-6)];
    let delay = found.shared()[DELAY];
    assert!(expected.shared()[DELAY].abs() < 0.02 && (delay - STEP).abs() < 0.02, "{delay}");
    // Whatever the turn of the whole path about its start: distances between its places.
    let across = |smoother: Smoother| -> Vec<f64> {
        let path = smoother.path();
        path.iter().zip(&path[70..]).map(|(pose, later)| (later - pose).xy().norm()).collect()
    };
    let [expected, found, bent] = [expected, found, bent].map(across);
    let off = |found: &[f64]| found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    assert!(off(&bent) > 0.1 && off(&found) < 0.2 * off(&bent), "{} {}", off(&found), off(&bent));
}

#[test]
fn where_the_field_is_flat_the_path_stays_that_of_odometry() {
    let truth = path(400);
    let mut links = links(&truth, 0.02, 0.003, 1);
    links.iter_mut().zip(&truth).for_each(|(link, pose)| {
        let field = Rotation2::new(-pose.z) * Vector2::new(18.0, 5.0);
        link.field = Vector3::new(field.x, field.y, -40.0);
    });
    let odometry = dead_reckoning(truth[0], &links);
    let flat = FieldPrior { variance_below: 0.5, variance_above: 0.5, ..FIELD };
    let mut smoother = Smoother::new(Prior::new(flat, 4.0), truth[0], links);
    smoother.run().unwrap();
    let moved = distance(&smoother.poses, &odometry);
    // Only the heading is seen, as by a compass.
    assert!(distance(&smoother.poses, &truth) < 1.1 * distance(&odometry, &truth), "moved by {moved}");
}

#[test]
fn nothing_one_pose_and_a_robot_that_stands_are_no_trouble() {
    let standing = |count: usize| {
        let truth = vec![Vector3::new(1.0, 2.0, 0.5); count];
        let mut smoother = Smoother::new(Prior::new(FIELD, 4.0), truth[0], links(&truth, 0.0, 0.0, 1));
        smoother.run().unwrap();
        assert_eq!(smoother.poses.len(), count);
        assert_eq!(smoother.online().len(), count);
        assert!(distance(&smoother.poses, &truth) < 1e-3);
        assert!(smoother.covariances().unwrap().iter().flatten().all(|value| value.is_finite()));
    };
    [1, 2, 31, 32, 70].into_iter().for_each(standing);
    let mut nothing = Smoother::new(Prior::new(FIELD, 4.0), Vector3::zeros(), Vec::new());
    nothing.run().unwrap();
    assert!(nothing.poses.is_empty() && nothing.covariances().unwrap().is_empty());
}

#[test]
fn a_slip_of_the_wheels_is_corrected() {
    let truth = path(400);
    let mut links = links(&truth, 0.01, 0.001, 5);
    links[150].movement.x += 0.3;
    let odometry = distance(&dead_reckoning(truth[0], &links), &truth);
    let mut smoother = Smoother::new(Prior::new(FIELD, 2.0), truth[0], links);
    smoother.run().unwrap();
    let smoothed = distance(&smoother.poses, &truth);
    assert!(smoothed < 0.3 * odometry, "{odometry} {smoothed}");
}

#[test]
fn a_path_that_is_held_at_a_wrong_place_lets_go_of_it() {
    let truth = path(400);
    let mut smoother = Smoother::new(Prior::new(FIELD, 2.0), truth[0], links(&truth, 0.0, 0.002, 5));
    smoother.run().unwrap();
    for (off, places) in [(1.0, 100..150), (-1.0, 150..250)] {
        let mut torn = smoother.clone();
        torn.poses[places].iter_mut().for_each(|pose| *pose += Vector3::new(off, off, 0.0));
        let mut held = torn.clone();
        held.settle(LAST_STEPS).unwrap();
        torn.finish().unwrap();
        let [held, found] = [held, torn].map(|smoother| distance(&smoother.poses, &truth));
        assert!(held > 0.5 && found < 0.06, "{held} {found}");
    }
}

#[test]
fn a_wrong_lengthscale_hardly_stretches_the_path() {
    let truth = path(400);
    let size = |poses: &[PlanePose]| {
        let centre = poses.iter().map(|pose| pose.xy()).sum::<Vector2<f64>>() / poses.len() as f64;
        poses.iter().map(|pose| (pose.xy() - centre).norm_squared()).sum::<f64>().sqrt()
    };
    let run = |factor: f64, is_lengthscale_known: bool| {
        let mut prior = Prior::new(FieldPrior { lengthscale: factor * FIELD.lengthscale, ..FIELD }, 2.0);
        prior.is_lengthscale_known = is_lengthscale_known;
        let mut smoother = Smoother::new(prior, truth[0], links(&truth, 0.0, 0.001, 5));
        smoother.run().unwrap();
        (size(&smoother.poses) / size(&truth) - 1.0).abs()
    };
    for factor in [0.8, 1.25] {
        let [known, unsure] = [true, false].map(|is_known| run(factor, is_known));
        // A fifth of the error of the lengthscale: odometry is right here, and its scale is held.
        assert!(known < 0.05, "{known}");
        // Where the lengthscale is not known, odometry tells the size.
        assert!(unsure < 0.01 && unsure < known, "{unsure} instead of {known}");
    }
}

#[test]
fn a_way_that_is_passed_once_stays_that_of_odometry_however_wrong_the_prior_of_the_field_is() {
    let mut truth = path(250);
    let end = truth[249];
    let (sin, cos) = end.z.sin_cos();
    truth.extend((1..60).map(|step| end + Vector3::new(cos, sin, 0.0) * (0.1 * f64::from(step))));
    let odometry = links(&truth, 0.0, 0.0, 5);
    let mut prior = Prior::new(FieldPrior { lengthscale: 2.0 * FIELD.lengthscale, ..FIELD }, 0.5);
    prior.shared[SCALE] = 1e-3;
    let mut smoother = Smoother::new(prior, truth[0], odometry);
    smoother.run().unwrap();
    let once = smoother.poses.iter().enumerate().filter(|(index, _)| !smoother.revisits.is_revisited(*index));
    let once: Vec<&PlanePose> = once.filter(|(index, _)| *index > 250).map(|(_, pose)| pose).collect();
    let (first, last) = (once[0], once[once.len() - 1]);
    let length = 0.1 * (once.len() - 1) as f64;
    assert!(once.len() > 20 && ((last - first).xy().norm() - length).abs() < 0.002 * length, "{first} {last} {length}");
    // The drift that the rest of the path tells is all that turns it.
    let drift = smoother.shared()[DRIFT] * length;
    assert!((last.z - first.z - drift).abs() < 0.002, "{} {} {drift}", first.z, last.z);
}

#[test]
fn until_it_comes_back_the_path_on_the_way_is_that_of_odometry_however_wrong_the_prior_of_the_field_is() {
    let truth: Vec<PlanePose> = (0..200).map(|step| PlanePose::new(0.1 * f64::from(step), 1.0, 0.0)).collect();
    let prior = Prior::new(FieldPrior { lengthscale: 2.0 * FIELD.lengthscale, ..FIELD }, 0.5);
    let mut smoother = Smoother::new(prior, truth[0], links(&truth, 0.02, 0.002, 3));
    while smoother.poses.len() < truth.len() {
        smoother.extend().unwrap();
    }
    let odometry = dead_reckoning(truth[0], &smoother.links);
    assert!(!smoother.has_returned() && distance(smoother.online(), &odometry) < 1e-9);
}

#[test]
fn a_path_that_its_revisits_contradict_yields_to_that_of_odometry() {
    let truth = path(250);
    let mut smoother = Smoother::new(Prior::new(FIELD, 4.0), truth[0], links(&truth, 0.0, 0.0, 5));
    smoother.run().unwrap();
    let estimated = smoother.poses.clone();
    smoother.keep_odometry_where_revisits_contradict().unwrap();
    assert!(distance(&smoother.poses, &estimated) == 0.0 && smoother.proof_from(0).unwrap() > 0.0);
    // Headings that drift at the same places: readings of one time contradict those of another.
    let drifting = smoother.poses.iter_mut().enumerate();
    drifting.for_each(|(index, pose)| pose.z += 0.02 * index as f64);
    smoother.lay_out();
    assert!(smoother.revisits().unwrap().iter().all(|revisit| revisit.evidence < 0.0));
    smoother.keep_odometry_where_revisits_contradict().unwrap();
    assert_eq!(smoother.poses, dead_reckoning(smoother.poses[0], &smoother.links));
}

#[test]
fn numbers_that_are_not_finite_are_errors() {
    type Damage = fn(&mut Prior, &mut [Link]);
    let damages: [Damage; 8] = [
        |_, links| links[50].field.x = f64::NAN,
        |_, links| links[3].movement.y = f64::NAN,
        |_, links| links[50].movement.x = 1e300,
        |_, links| links[7].turn = f64::INFINITY,
        |_, links| links[0].tilt[(1, 1)] = f64::NAN,
        |prior, _| prior.field.lengthscale = 0.0,
        |prior, _| prior.noise = f64::NAN,
        |prior, _| prior.shared[SCALE] = -1.0,
    ];
    for (index, damage) in damages.iter().enumerate() {
        let truth = path(60);
        let (mut prior, mut links) = (Prior::new(FIELD, 2.0), links(&truth, 0.0, 0.001, 5));
        damage(&mut prior, &mut links);
        let mut smoother = Smoother::new(prior, truth[0], links);
        assert!(smoother.run().is_err(), "{index}");
        assert!(smoother.covariances().is_err(), "{index}");
    }
}

#[test]
fn absurd_numbers_do_no_harm() {
    let truth = path(45);
    let run = |damage: fn(&mut [Link])| {
        let mut links = links(&truth, 0.0, 0.001, 5);
        damage(&mut links);
        let prior = Prior { tile: 2.0, ..Prior::new(FIELD, 2.0) };
        let mut smoother = Smoother::new(prior, truth[0], links);
        // An error or a path, but no panic and nothing that is not a number.
        if smoother.run().is_ok() {
            assert!(smoother.poses.iter().flatten().all(|value| value.is_finite()));
        }
    };
    run(|links| links[30].movement.x = 300.0);
    run(|links| links[30].movement.x = 9e5);
    run(|links| links[20].field.z = 1e200);
    run(|links| links.iter_mut().for_each(|link| link.field *= 1e4));
    run(|links| links.iter_mut().for_each(|link| link.turn = 3.0));
}

/// Length of the way from one room to another, in metres.
const WAY: f64 = 10.0;

/// A path through a room, straight to another one that is equal but turned, and through that.
fn through_two_rooms() -> Vec<PlanePose> {
    let (mut truth, room) = (path(250), path(250));
    let end = truth[249];
    let ahead = Vector3::new(end.z.cos(), end.z.sin(), 0.0);
    truth.extend((1..100).map(|step| end + ahead * (0.01 * WAY * f64::from(step))));
    let from = truth[truth.len() - 1];
    truth.extend(room[1..].iter().map(|pose| placed(pose, &room[0], &from)));
    truth
}

/// The pose that is seen from one pose as another is from a third.
fn placed(pose: &PlanePose, seen_from: &PlanePose, now_from: &PlanePose) -> PlanePose {
    let turn = now_from.z - seen_from.z;
    let moved = Rotation2::new(turn) * (pose - seen_from).xy();
    now_from + Vector3::new(moved.x, moved.y, pose.z - seen_from.z)
}

/// The true path through both rooms by odometry without errors, under a prior with this noise of the heading.
fn between_two_rooms(truth: &[PlanePose], heading: f64) -> Smoother {
    let mut links = links(truth, 0.0, 0.0, 5);
    let constant = Vector3::new(3.0, -2.0, -40.0);
    for (link, pose) in links.iter_mut().zip(truth) {
        link.field = reading(pose);
        if let Some(other) = truth.get(349) {
            link.field += reading(&placed(pose, other, &truth[0])) - constant;
        }
    }
    let mut prior = Prior::new(FIELD, 4.0);
    prior.odometry.heading = heading;
    // Without a drift, whose error would add to that of the heading.
    prior.shared[DRIFT] = 1e-6;
    let mut smoother = Smoother::new(prior, truth[0], links);
    smoother.poses = truth.to_vec();
    smoother
}

#[test]
fn the_motions_of_a_field_are_its_shifts_and_its_turn() {
    let mut smoother = between_two_rooms(&path(250), 0.02);
    smoother.settle(1).unwrap();
    smoother.find_motions().unwrap();
    let tile = &smoother.tiles[0];
    assert!(smoother.tiles.len() == 1 && tile.motions.len() == 3);
    let seen = |unknowns: &[f64], poses: &[PlanePose]| -> DVector<f64> {
        let potential = tile.basis.potential(unknowns);
        let axes = |pose: &PlanePose| {
            let field = tile.basis.phases(pose).field(&potential);
            let turned = Rotation2::new(-pose.z) * field.xy();
            [turned.x, turned.y, field.z]
        };
        DVector::from_vec(poses.iter().flat_map(axes).collect())
    };
    let motions: Vec<_> = tile.motions.iter().map(|motion| seen(motion, &smoother.poses)).collect();
    let motions = DMatrix::from_columns(&motions).svd(true, true);
    let start = PlanePose::zeros();
    for by in [Vector3::x(), Vector3::y(), Vector3::z()] {
        let moved: Vec<PlanePose> = smoother.poses.iter().map(|pose| placed(pose, &start, &(by * 1e-4))).collect();
        let change = seen(&tile.field, &moved) - seen(&tile.field, &smoother.poses);
        let shares = motions.solve(&change, 1e-12).unwrap();
        let rest = (motions.clone().recompose().unwrap() * shares - &change).norm() / change.norm();
        // What is left is mostly in modes of short waves, which the readings hardly tell.
        assert!(rest < 0.03, "{by}: {rest}");
    }
}

#[test]
fn a_room_is_as_uncertain_as_the_way_to_it() {
    let truth = through_two_rooms();
    let end = truth[249];
    let across = Vector2::new(-end.z.sin(), end.z.cos());
    for heading in [0.02, 0.1] {
        let mut smoother = between_two_rooms(&truth, heading);
        smoother.settle(0).unwrap();
        smoother.find_motions().unwrap();
        let covariances = smoother.covariances_of_given_size().unwrap();
        // A random walk of the heading between both rooms, which tell it, over the eight metres without a field.
        let least = heading * (8.0_f64.powi(3) / 12.0).sqrt();
        for (index, covariance) in covariances.iter().enumerate().skip(360).step_by(20) {
            let deviation = across.dot(&(covariance.fixed_view::<2, 2>(0, 0) * across)).sqrt();
            assert!(deviation > 0.8 * least && deviation < 4.0 * least, "{index}: {deviation} {least}");
        }
    }
}

#[test]
fn where_a_room_is_found_does_not_depend_on_where_it_was_left() {
    let truth = through_two_rooms();
    let mut smoother = between_two_rooms(&truth, 0.02);
    smoother.settle(LAST_STEPS).unwrap();
    let mut left = between_two_rooms(&truth, 0.02);
    let end = truth[249];
    for (index, pose) in left.poses.iter_mut().enumerate().skip(250) {
        let along = (0.01 * WAY * (index - 249) as f64).min(WAY);
        *pose += Vector3::new(-end.z.sin(), end.z.cos(), 0.0) * (0.06 * along);
    }
    let apart = distance(&left.poses, &smoother.poses);
    left.settle(LAST_STEPS).unwrap();
    let settled = distance(&left.poses, &smoother.poses);
    // The last step of each is smaller than 3 mm.
    assert!(apart > 0.3 && settled < 6e-3, "{apart} {settled}");
}
