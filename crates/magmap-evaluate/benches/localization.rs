//! The cost of an update of the particle filter against the number of particles, and while it searches the whole map: once for every 5 cm
//! of path.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use magmap::config::{Config, Localization, Mapped};
use magmap::field::map::FieldMap;
use magmap::field::model::FieldModel;
use magmap::mapping::pipeline::Pipeline;
use magmap::particle_filter::lookup::MapLookup;
use magmap::particle_filter::{MotionStep, ParticleFilter, Start};
use magmap_tools::simulation;
use nalgebra::Isometry3;
use std::f64::consts::TAU;
use std::sync::Arc;

/// Numbers of particles.
const PARTICLES: [usize; 4] = [500, 2000, 8000, 20_000];

/// Steps of a lap in a circle of 2 m radius around the middle of the room, of 5 cm each.
const LAP: usize = 251;

/// A map of the demonstration's room.
fn map(config: &Config) -> FieldMap {
    let demo = simulation::demo();
    let drive = demo.drive(demo.world().expect("a world")).expect("a drive");
    let mut pipeline = Pipeline::new(config, Isometry3::identity());
    drive.for_each(|sample| pipeline.ingest(sample.measurement));
    pipeline.finish();
    let mut model = FieldModel::new(config);
    for batch in pipeline.take_ready() {
        model.update(&batch.observations, &|| false).expect("a batch of the demonstration");
    }
    model.map().expect("a map")
}

/// Steps of a robot that reads what the map says.
fn steps<const D: usize>(lookup: &MapLookup) -> Vec<MotionStep> {
    let place = |index: usize| {
        let angle = TAU * index as f64 / LAP as f64;
        [3.0 + 2.0 * angle.cos(), 3.0 + 2.0 * angle.sin()]
    };
    let step = |index: usize| {
        let ([x, y], [from_x, from_y]) = (place(index + 1), place(index));
        let mean = lookup.at::<D>([x, y]).expect("a known place").mean;
        let field = std::array::from_fn(|axis| mean.get(axis).copied().unwrap_or(0.0));
        MotionStep { movement: [x - from_x, y - from_y], rotation: TAU / LAP as f64, heading: 0.0, field }
    };
    (0..LAP).map(step).collect()
}

fn update(criterion: &mut Criterion) {
    for (name, field) in [("strength", Mapped::Strength), ("three axes", Mapped::Vector)] {
        let mut config = Config::default();
        config.model.field = field;
        // The starting values suit this room; what they are makes no difference to the filter.
        config.learning.max_evaluations = 0;
        let map = map(&config);
        let lookup = Arc::new(MapLookup::of(&map, &config.localization, 0.0).expect("a map of the field"));
        let steps = if lookup.outputs == 1 { steps::<1>(&lookup) } else { steps::<3>(&lookup) };
        let mut group = criterion.benchmark_group(format!("localization, {name}"));
        group.sample_size(20);
        for particles in PARTICLES {
            let settings =
                Localization { min_particles: particles, max_particles: particles, ..config.localization.clone() };
            let start = Start::At { place: [5.0, 3.0], heading: 0.0, deviation: 0.1, heading_deviation: 0.05 };
            let mut filter = ParticleFilter::new(&settings, lookup.clone(), &start);
            let mut lap = steps.iter().cycle();
            group.bench_function(BenchmarkId::from_parameter(particles), |bencher| {
                bencher.iter(|| lap.next().map(|step| filter.update(step)));
            });
        }
        // Readings that are nowhere in the map.
        let strange: Vec<MotionStep> =
            steps.iter().map(|step| MotionStep { field: [95.0, -80.0, 60.0], ..*step }).collect();
        let mut filter = ParticleFilter::new(&config.localization, lookup.clone(), &Start::Anywhere);
        let mut lap = strange.iter().cycle();
        group.bench_function("lost", |bencher| bencher.iter(|| lap.next().map(|step| filter.update(step))));
        group.finish();
    }
}

// Plots need a font of the system.
criterion_group! { name = benches; config = Criterion::default().without_plots(); targets = update }
criterion_main!(benches);
