//! The robust fit: at its Gaussian limit, and on drives with gross outliers.

use std::collections::VecDeque;

use magmap::config::{self, Config};
use magmap::mapping::field_model::{FieldModel, FieldPosterior, far_variance};
use magmap::mapping::pipeline::Pipeline;
use magmap::mapping::reading::{MagneticField, Measurement, Observation};
use magmap::simulation::{Drive, Path, RobotOptions, Route};
use magmap_evaluate::random_field::{RandomField, RandomFieldOptions};
use nalgebra::Isometry3;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use streaming_gp::kernel::Places;
use streaming_gp::points::Points;

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn many_degrees_of_freedom_give_the_gaussian_map() {
    let drive = observations(&world(1), 1, &Config::default(), || 0.0);
    let mut config = Config::default();
    let gaussian = learn(&config, &drive);
    (config.model.likelihood, config.model.degrees_of_freedom) = (config::Likelihood::StudentT, 1e18);
    let robust = learn(&config, &drive);
    let places = cells();
    let [expected, found] = [&gaussian, &robust].map(|model| predictions(model.posterior().unwrap(), &places));
    for ((expected, deviation), (mean, other)) in expected.iter().zip(&found) {
        // Weights of exactly 1; only their evidence has rounding of its own, which learning may amplify.
        assert!((mean - expected).abs() < 1e-6 && (other - deviation).abs() < 1e-6, "{mean} {expected}");
    }
}

/// Side of the room, in metres.
const ROOM: f64 = 4.0;

fn world(seed: u64) -> RandomField {
    RandomField::random(&RandomFieldOptions::default(), seed).unwrap()
}

fn robust() -> Config {
    let mut config = Config::default();
    config.model.likelihood = config::Likelihood::StudentT;
    config
}

/// A drive in lanes of half a metre through gates and averages, in batches. `spoil` is added to the strength of each reading.
fn observations(
    world: &RandomField,
    seed: u64,
    config: &Config,
    mut spoil: impl FnMut() -> f64,
) -> Vec<Vec<Observation>> {
    let path = Path::through_room(Route::LawnMower { spacing: 0.5 }, [ROOM, ROOM], 40.0, seed).unwrap();
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    let mut ready = VecDeque::new();
    for sample in Drive::new(world, path, RobotOptions::default(), seed).unwrap() {
        let mut measurement = sample.measurement;
        if let Measurement::Reading(reading) = &mut measurement {
            let strength = reading.field.strength();
            let spoilt = strength + spoil();
            reading.field = MagneticField::from_microtesla(reading.field.microtesla() * (spoilt / strength));
        }
        pipeline.ingest(measurement, &mut ready);
    }
    pipeline.finish(&mut ready);
    ready.into_iter().map(|batch| batch.observations).collect()
}

fn learn(config: &Config, batches: &[Vec<Observation>]) -> FieldModel {
    let mut model = FieldModel::new(config);
    for batch in batches {
        model.update(batch, &|| false).unwrap();
    }
    model
}

/// The cells of a map of the room.
fn cells() -> Points {
    let mut places = Points::new(2);
    let count = (ROOM / 0.1) as u32;
    for i in 0..=count {
        (0..=count).for_each(|j| places.push(&[0.1 * f64::from(i), 0.1 * f64::from(j)]));
    }
    places
}

/// Mean and standard deviation.
fn predictions(posterior: &FieldPosterior, places: &Points) -> Vec<(f64, f64)> {
    let (mut mean, mut variance) = (vec![0.0; places.len()], vec![0.0; places.len()]);
    posterior.predict(places, &mut mean, &mut variance);
    mean.into_iter().zip(variance.into_iter().map(f64::sqrt)).collect()
}

/// By how many standard deviations a spoilt map differs from the clean one: roots of the mean of the squares over the known cells.
#[derive(Debug)]
struct Change {
    /// In standard deviations of the spoilt map: what it says of itself.
    of_itself: f64,
    /// In those of the clean map, which do not grow with the outliers.
    of_clean: f64,
}

fn change(clean: &FieldModel, spoilt: &FieldModel) -> Change {
    let places = cells();
    let [clean, spoilt] = [clean, spoilt].map(|model| model.posterior().unwrap());
    let known = 0.75 * far_variance(clean);
    let pairs: Vec<_> = predictions(clean, &places)
        .into_iter()
        .zip(predictions(spoilt, &places))
        .filter(|((_, deviation), _)| deviation * deviation < known)
        .collect();
    assert!(pairs.len() > places.len() / 2, "{} known cells", pairs.len());
    let root = |deviation: fn(f64, f64) -> f64| {
        let square = |((mean, clean), (other, spoilt)): &((f64, f64), (f64, f64))| {
            ((other - mean) / deviation(*clean, *spoilt)).powi(2)
        };
        (pairs.iter().map(square).sum::<f64>() / pairs.len() as f64).sqrt()
    };
    Change { of_itself: root(|_, spoilt| spoilt), of_clean: root(|clean, _| clean) }
}

/// In every world the robust map is changed by less than what it is uncertain by, on average over the worlds also by less than what
/// the clean map is uncertain by; and the Gaussian one by more than twice that, else the outliers would be none.
fn assert_only_robust_maps_withstand(name: &str, worlds: &[[Change; 2]]) {
    let mut squares = 0.0;
    for (seed, [robust, gaussian]) in worlds.iter().enumerate() {
        println!("{name}, seed {seed}: robust {robust:.2?}, Gaussian {gaussian:.2?}");
        assert!(robust.of_itself < 1.0, "{name}, seed {seed}: {robust:?}");
        assert!(
            gaussian.of_clean > 1.5 && gaussian.of_clean > 2.0 * robust.of_clean,
            "{name}, seed {seed}: {gaussian:?}"
        );
        squares += robust.of_clean.powi(2);
    }
    let root = (squares / worlds.len() as f64).sqrt();
    assert!(root < 1.0, "{name}: {root} over all worlds");
}

type Outlier = fn(&mut ChaCha8Rng) -> f64;

/// What one in twenty readings is off by, in microtesla.
const OUTLIERS: [(&str, Outlier); 4] = [
    ("20 to 60, either sign", |random| {
        let size = random.random_range(20.0..60.0);
        if random.random_bool(0.5) { size } else { -size }
    }),
    ("20 to 60, too strong", |random| random.random_range(20.0..60.0)),
    ("50, too strong", |_| 50.0),
    ("1000, too strong", |_| 1000.0),
];

#[test]
fn five_in_a_hundred_gross_outliers_change_the_robust_map_by_less_than_its_standard_deviation() {
    for (name, outlier) in OUTLIERS {
        let worlds: Vec<_> = (0..6)
            .map(|seed| {
                // Straight to the model: no gate and no average has seen the outliers.
                let clean = observations(&world(seed), seed, &Config::default(), || 0.0);
                let (mut chosen, mut sizes) = (random(1000 + seed), random(3000 + seed));
                let mut spoilt = clean.clone();
                for observation in spoilt.iter_mut().flatten() {
                    if chosen.random_bool(0.05) {
                        observation.strength += outlier(&mut sizes);
                    }
                }
                [robust(), Config::default()].map(|config| change(&learn(&config, &clean), &learn(&config, &spoilt)))
            })
            .collect();
        assert_only_robust_maps_withstand(name, &worlds);
    }
}

#[test]
fn so_do_outliers_among_the_readings_of_a_drive_through_gates_and_averages() {
    let mut open = robust();
    (open.gates.max_gradient, open.gates.maximum_field) = (0.0, 1e4);
    for (name, config, outlier) in [
        // What the gates let pass.
        ("35 through the gates", robust(), 35.0),
        ("50 through open gates", open.clone(), 50.0),
        ("1000 through open gates", open, 1000.0),
    ] {
        let worlds: Vec<_> = (0..6)
            .map(|seed| {
                [config::Likelihood::StudentT, config::Likelihood::Gaussian].map(|likelihood| {
                    let mut config = config.clone();
                    config.model.likelihood = likelihood;
                    let [clean, spoilt] = [0.0, outlier].map(|outlier| {
                        let mut random = random(2000 + seed);
                        let spoil = || if random.random_bool(0.05) { outlier } else { 0.0 };
                        learn(&config, &observations(&world(seed), seed, &config, spoil))
                    });
                    change(&clean, &spoilt)
                })
            })
            .collect();
        assert_only_robust_maps_withstand(name, &worlds);
    }
}
