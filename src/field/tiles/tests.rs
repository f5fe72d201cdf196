use std::io;
use std::sync::{Arc, Mutex};

use nalgebra::{Matrix3, Point3, Rotation3, Vector3};

use crate::arrays::Problem;
use crate::config::{Config, Mapped};
use crate::field::map::FieldMap;
use crate::field::model::FieldModel;
use crate::field::process::ProcessState;
use crate::field::tile_store::{TileRow, TileStore};
use crate::field::tiles::memory::Resident;
use crate::field::tiles::{TileContent, TileState};
use crate::sensing::reading::{MagneticField, Observation, Stamp};
use crate::store::Database;

/// Hard iron of the sensor, in microtesla.
const IRON: [f64; 3] = [3.0, -2.0, 0.0];

fn tiled(field: Mapped) -> Config {
    let mut config = Config::default();
    config.model.field = field;
    (config.tiles.size, config.tiles.halo, config.tiles.band) = (4.0, 1.0, 0.4);
    config
}

fn one_model(field: Mapped) -> Config {
    Config { tiles: Config::default().tiles, ..tiled(field) }
}

/// Observations of a harmonic field by a robot that drives through these places with this heading.
fn seen(places: impl Iterator<Item = ([f64; 2], f64)>) -> Vec<Observation> {
    let observation = |([x, y], heading): ([f64; 2], f64)| {
        let turn = Rotation3::from_euler_angles(0.0, 0.0, heading);
        // The gradient of 3 sin(1.3 x) cos(y) exp(-1.64 z).
        let (x_part, vertical) = (3.0 * (1.3 * x).sin(), -3.0 * 2.69_f64.sqrt());
        let around =
            Vector3::new(3.9 * (1.3 * x).cos() * y.cos(), -x_part * y.sin(), vertical * (1.3 * x).sin() * y.cos());
        let field = Vector3::new(20.0, 3.0, -40.0) + around;
        Observation {
            stamp: Stamp::from_nanoseconds((1e9 * (x + 100.0 * y)) as i64),
            position: Point3::new(x, y, 0.0),
            orientation: *turn.matrix(),
            speed: 0.3,
            field: MagneticField::from_microtesla(field + turn * Vector3::from(IRON)),
            strength: field.norm(),
            readings: 5,
        }
    };
    places.map(observation).collect()
}

/// Along x and back, half a metre to the side, from the middle of the first tile.
fn corridor(length: f64) -> Vec<Observation> {
    let steps = (length / 0.08) as usize;
    let there = (0..steps).map(|i| ([0.08 * i as f64, 0.2 * (0.05 * i as f64).sin()], 0.0));
    let back = (0..steps).rev().map(|i| ([0.08 * i as f64, 0.5], 3.0));
    seen(there.chain(back))
}

/// A circle and two crossing lines around the first observation, up to this far.
fn around(radius: f64) -> Vec<Observation> {
    let circle = (0..150).map(|i| {
        let angle = 0.042 * f64::from(i);
        ([radius * angle.sin(), radius * angle.cos()], -angle)
    });
    let line = |along_x: bool| {
        (0..60).map(move |i| {
            let along = radius * (f64::from(i) / 30.0 - 1.0);
            if along_x { ([along, 0.1], 0.0) } else { ([0.1, along], 1.6) }
        })
    };
    seen([([0.0, 0.0], 0.0)].into_iter().chain(line(true)).chain(line(false)).chain(circle))
}

fn learnt(config: &Config, observations: &[Observation]) -> FieldModel {
    let mut model = FieldModel::new(config);
    for batch in observations.chunks(40) {
        model.update(batch, &|| false).unwrap();
    }
    model
}

fn predictions(map: &FieldMap, places: &[[f64; 2]]) -> Vec<(f64, f64)> {
    let (mean, variance) = map.predict(places, f64::INFINITY);
    mean.into_iter().zip(variance).collect()
}

fn raster(half: f64) -> Vec<[f64; 2]> {
    let steps = -20..=20;
    steps
        .clone()
        .flat_map(|i| steps.clone().map(move |j| [half * f64::from(i) / 20.0, half * f64::from(j) / 20.0]))
        .collect()
}

fn tiles(model: &FieldModel) -> Vec<TileState> {
    model.state().tiles.tiles
}

fn size(tile: &TileState) -> usize {
    match &*tile.process().unwrap() {
        ProcessState::Strength(state) => state.past.as_ref().unwrap().target.len(),
        ProcessState::Vector(vector) => vector.state.past.as_ref().unwrap().target.len(),
    }
}

#[test]
fn within_one_tile_and_its_halo_the_map_is_that_of_one_model_to_the_last_bit() {
    for field in [Mapped::Strength, Mapped::Vector] {
        // The halo of the first tile ends 3 m from its middle, and that of its neighbours begins at 1 m.
        let observations = around(2.95);
        let (mut tiled, mut one) = (FieldModel::new(&tiled(field)), FieldModel::new(&one_model(field)));
        for batch in observations.chunks(40) {
            let [report, expected] = [&mut tiled, &mut one].map(|model| model.update(batch, &|| false).unwrap());
            assert_eq!(report, expected);
        }
        assert_eq!(tiles(&tiled).len(), 9, "all neighbours have learnt as well");
        let [tiled, one] = [tiled, one].map(|model| model.map().unwrap());
        assert_eq!(predictions(&tiled, &raster(6.0)), predictions(&one, &raster(6.0)));
        assert_eq!(tiled.hyperparameters(), one.hyperparameters());
        assert_eq!((tiled.sensor_bias(), tiled.size()), (one.sensor_bias(), one.size()));
        assert_eq!(tiled.sensor_bias().is_some(), field == Mapped::Vector);
        assert_eq!(tiled.inducing_points(), one.inducing_points());
    }
}

#[test]
fn there_are_no_seams() {
    for field in [Mapped::Strength, Mapped::Vector] {
        let map = learnt(&tiled(field), &corridor(16.0)).map().unwrap();
        // Edges are at x = 2, 6, 10 and 14; half a metre around them is a seam.
        let step = 0.05;
        let along: Vec<[f64; 2]> = (0..320).map(|i| [step * f64::from(i), 0.25]).collect();
        let values = predictions(&map, &along);
        let is_seam = |x: f64| ((x + 2.0).rem_euclid(4.0)).min(4.0 - (x + 2.0).rem_euclid(4.0)) < 0.5;
        let largest = |wanted: bool| {
            let changes = values.windows(2).zip(&along).filter(|(_, [x, _])| is_seam(*x) == wanted);
            changes.map(|(pair, _)| (pair[1].0 - pair[0].0).abs()).fold(0.0, f64::max)
        };
        assert!(largest(true) <= 1.3 * largest(false), "{} at seams, {} elsewhere", largest(true), largest(false));

        // The slope is continuous: across any millimetre it changes by no more than a curvature allows that turns the largest slope
        // around within the fade, 0.8 m, ten times over.
        let fine = 1e-3;
        let line: Vec<[f64; 2]> = (0..3000).map(|i| [1.0 + fine * f64::from(i), 0.25]).collect();
        let values: Vec<f64> = predictions(&map, &line).into_iter().map(|(mean, _)| mean).collect();
        let slopes: Vec<f64> = values.windows(2).map(|pair| (pair[1] - pair[0]) / fine).collect();
        let steepest = slopes.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
        for (pair, [x, _]) in slopes.windows(2).zip(&line) {
            assert!((pair[1] - pair[0]).abs() < 10.0 * 2.0 * steepest / 0.8 * fine + 1e-6, "{pair:?} at {x}");
        }
    }
}

#[test]
fn tiles_predict_what_one_model_predicts() {
    // The axes' lengthscale is held more firmly in tiles, and this field varies over longer distances.
    for (field, tolerance, more) in [(Mapped::Strength, 1.02, 0.05), (Mapped::Vector, 1.1, 0.1)] {
        let observations = corridor(12.0);
        let error = |config: &Config| {
            let map = learnt(config, &observations).map().unwrap();
            let places: Vec<[f64; 2]> =
                observations.iter().map(|seen| [seen.position.x, seen.position.y + 0.1]).collect();
            let truth = seen(places.iter().map(|place| (*place, 0.0)));
            let squares = predictions(&map, &places)
                .into_iter()
                .zip(truth)
                .map(|((mean, _), seen)| (mean - seen.strength).powi(2));
            (squares.sum::<f64>() / places.len() as f64).sqrt()
        };
        let [tiled, one] = [error(&tiled(field)), error(&one_model(field))];
        assert!(tiled < tolerance * one + more, "{field:?}: {tiled} with tiles, {one} with one model");
    }
}

#[test]
fn the_number_of_threads_does_not_change_the_map() {
    let learnt = |threads: usize| {
        let mut config = tiled(Mapped::Vector);
        config.tiles.threads = threads;
        learnt(&config, &corridor(8.0))
    };
    let [one, two, four] = [1, 2, 4].map(learnt);
    assert_eq!(tiles(&one), tiles(&two));
    assert_eq!(tiles(&one), tiles(&four));
    assert!(tiles(&one).len() > 2);
}

#[test]
fn an_update_touches_few_tiles_however_large_the_map_is() {
    let mut model = FieldModel::new(&tiled(Mapped::Strength));
    let mut touched = Vec::new();
    for batch in corridor(40.0).chunks(25) {
        let before = tiles(&model);
        model.update(batch, &|| false).unwrap();
        let changed: Vec<usize> = tiles(&model).iter().filter(|tile| !before.contains(tile)).map(size).collect();
        assert!((1..=4).contains(&changed.len()), "2 m of path: {changed:?}");
        touched.push(changed.iter().sum::<usize>());
    }
    let all: usize = tiles(&model).iter().map(size).sum();
    let (outward, back) = touched.split_at(touched.len() / 2);
    let largest = |touched: &[usize]| touched.iter().copied().max().unwrap();
    // On the way back each tile has what it learnt on the way there; the map has grown fivefold meanwhile.
    assert!(largest(back) < 2 * largest(&outward[..10]) && largest(back) < all / 3, "{touched:?} of {all}");
}

#[test]
fn a_rejected_batch_changes_no_tile() {
    let mut model = learnt(&tiled(Mapped::Strength), &corridor(4.0));
    let before = model.state();
    let mut batch = corridor(8.0);
    let good = batch[99].strength;
    batch[99].strength = f64::NAN;
    assert!(model.update(&batch, &|| false).is_err());
    batch[99].strength = good;
    batch[99].position.y = f64::INFINITY;
    assert!(model.update(&batch, &|| false).is_err());
    assert_eq!(model.state().tiles, before.tiles);
    assert_eq!((model.totals.rejected_batches, model.state().extent), (2, before.extent));
}

#[test]
fn a_tile_begins_with_the_hyperparameters_of_its_neighbours() {
    let mut config = tiled(Mapped::Strength);
    config.learning.prior_log_sd.lengthscale = 1.0;
    // As far as 4.9 m, where the halo of the third tile has not begun.
    let mut model = learnt(&config, &corridor(5.0)[..62]);
    let hyperparameters = |model: &FieldModel, column: i64| {
        let tiles = tiles(model);
        let tile = tiles.iter().find(|tile| tile.square == [column, 0]).unwrap();
        let process = tile.process().unwrap();
        let ProcessState::Strength(state) = &*process else { panic!("a map of strengths") };
        state.hyperparameters.iter().map(|value| value.value).collect::<Vec<f64>>()
    };
    let of_second = hyperparameters(&model, 1);
    assert!((of_second[2] / config.model.initial.lengthscale - 1.0).abs() > 0.02, "{of_second:?}");
    // The third tile has the second as its only neighbour.
    config.learning.max_evaluations = 0;
    model.configure(&config);
    model.update(&seen([([5.5, 0.0], 0.0)].into_iter()), &|| false).unwrap();
    let (of_second, of_third) = (hyperparameters(&model, 1), hyperparameters(&model, 2));
    // A logarithm and back.
    for (found, expected) in of_third.iter().zip(of_second) {
        assert!((found / expected - 1.0).abs() < 1e-12, "{found} instead of {expected}");
    }
}

#[test]
fn the_bias_of_the_sensor_is_one_for_all_tiles_and_no_reading_counts_twice() {
    let observations = corridor(12.0);
    let map = learnt(&tiled(Mapped::Vector), &observations).map().unwrap();
    let one = learnt(&one_model(Mapped::Vector), &observations).map().unwrap();
    let (shared, alone) = (map.sensor_bias().unwrap(), one.sensor_bias().unwrap());
    for (axis, iron) in IRON.into_iter().enumerate().take(2) {
        assert!((shared.hard_iron[axis] - iron).abs() < 0.5, "{shared:?}");
        // Tiles share no field, which costs some precision; were halos counted twice, the sum would be surer than one model.
        let ratio = shared.hard_iron_sd[axis] / alone.hard_iron_sd[axis];
        assert!((0.95..2.0).contains(&ratio), "{ratio}: {shared:?} {alone:?}");
    }
    assert!(shared.hard_iron[2].abs() < 0.05, "nothing tells the vertical part: {shared:?}");
    let counts: (u64, u64) = tiles(&learnt(&tiled(Mapped::Vector), &observations))
        .iter()
        .fold((0, 0), |(learnt, own), tile| (learnt + tile.counts.learnt, own + tile.counts.own));
    assert!(counts.0 > counts.1);
    assert_eq!(counts.1, observations.len() as u64);
    // What the sensor reads is predicted with the bias, whichever tile does it.
    let pose = |x: f64| streaming_gp::vector::SensorPose {
        position: [x, 0.1, 0.0],
        orientation: Matrix3::identity().into(),
        speed: 0.3,
    };
    let poses: Vec<_> = (0..110).map(|i| pose(0.1 * f64::from(i))).collect();
    let truth = seen((0..110).map(|i| ([0.1 * f64::from(i), 0.1], 0.0)));
    for (axes, seen) in map.readings(&poses).unwrap().iter().zip(&truth) {
        assert!((Vector3::from(axes.mean) - seen.field.microtesla()).norm() < 2.5, "{axes:?} {seen:?}");
    }
}

/// Approximate bytes of the tiles that are in memory, and number of those that are not.
fn in_memory(model: &FieldModel) -> (usize, usize) {
    let tiles = tiles(model);
    let shared = tiles.iter().map(|tile| match &tile.content {
        TileContent::Shared(tile) => tile,
        TileContent::Plain(_) => panic!("the state of a model shares its tiles"),
    });
    let (inside, outside): (Vec<_>, Vec<_>) = shared.partition(|tile| tile.is_in_memory());
    (inside.iter().map(|tile| tile.bytes()).sum(), outside.len())
}

#[test]
fn tiles_that_are_not_in_memory_make_the_same_map_to_the_last_bit() {
    for field in [Mapped::Strength, Mapped::Vector] {
        let whole = learnt(&tiled(field), &corridor(24.0));
        let mut config = tiled(field);
        // A few of the largest tiles.
        config.tiles.memory = if field == Mapped::Vector { 0.4 } else { 0.5 };
        let mut model = FieldModel::new(&config);
        model.keep_tiles_in(Arc::new(Database::temporary().unwrap()));
        let mut most = 0;
        for batch in corridor(24.0).chunks(40) {
            model.update(batch, &|| false).unwrap();
            most = most.max(in_memory(&model).0);
        }
        let (bytes, evicted) = in_memory(&model);
        assert!(bytes <= most && most as f64 <= 1e6 * config.tiles.memory, "{most} bytes");
        assert!(evicted > 2, "{evicted} tiles are in files only, {bytes} bytes in memory");
        let [expected, found] = [&whole, &model].map(|model| model.map().unwrap());
        let along: Vec<[f64; 2]> = (0..300).map(|i| [0.1 * f64::from(i) - 2.0, 0.25]).collect();
        assert_eq!(predictions(&found, &along), predictions(&expected, &along));
        assert_eq!((found.sensor_bias(), found.size()), (expected.sensor_bias(), expected.size()));
        assert_eq!(found.inducing_points(), expected.inducing_points());
        assert_eq!(tiles(&model), tiles(&whole));
        assert!(in_memory(&model).0 as f64 <= 1e6 * config.tiles.memory, "reading all tiles keeps the bound");
    }
}

/// A store that loses what it is given, or does not take it.
#[derive(Debug)]
struct Faulty {
    takes: bool,
    lost: Mutex<Vec<[i64; 2]>>,
}

impl TileStore for Faulty {
    fn is_ready(&self) -> bool {
        true
    }

    fn write(&self, _: &TileRow) -> io::Result<u64> {
        if self.takes { Ok(1) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn read(&self, _: u64) -> Result<TileRow, Problem> {
        Err(Problem::Damaged("a bit is flipped".into()))
    }

    fn report_lost(&self, _: u64, square: [i64; 2], _: &Problem) {
        self.lost.lock().unwrap().push(square);
    }

    fn release(&self, _: u64) {}
}

#[test]
fn a_tile_whose_file_is_damaged_is_unknown_and_begins_anew_and_the_others_are_as_before() {
    let mut config = tiled(Mapped::Strength);
    config.tiles.memory = 0.3;
    let store = Arc::new(Faulty { takes: true, lost: Mutex::default() });
    let (there, whole) = (&corridor(24.0)[..300], learnt(&tiled(Mapped::Strength), &corridor(24.0)[..300]));
    let mut model = FieldModel::new(&config);
    model.keep_tiles_in(Arc::clone(&store) as Arc<dyn TileStore>);
    there.chunks(40).for_each(|batch| drop(model.update(batch, &|| false).unwrap()));
    assert!(in_memory(&model).1 > 2 && store.lost.lock().unwrap().is_empty(), "the robot has only driven away");
    let map = model.map().unwrap();
    // Middle of the first tile, and of the newest.
    let places = [[0.0, 0.0], [24.0, 0.0]];
    let (found, expected) = (predictions(&map, &places), predictions(&whole.map().unwrap(), &places));
    assert!(found[0].0.is_nan() && found[1] == expected[1], "{found:?} {expected:?}");
    assert_eq!(*store.lost.lock().unwrap(), [[0, 0]]);
    // Back in the first tile.
    model.update(&there[..40], &|| false).unwrap();
    let anew = predictions(&model.map().unwrap(), &places[..1])[0];
    assert!((anew.0 - expected[0].0).abs() < 1.0, "{anew:?} {expected:?}");
    assert_eq!(tiles(&model).iter().find(|tile| tile.square == [0, 0]).unwrap().counts.learnt, 38);
}

#[test]
fn where_nothing_can_be_written_all_tiles_stay_in_memory() {
    let mut config = tiled(Mapped::Strength);
    config.tiles.memory = 0.3;
    let mut model = FieldModel::new(&config);
    model.keep_tiles_in(Arc::new(Faulty { takes: false, lost: Mutex::default() }));
    corridor(16.0).chunks(40).for_each(|batch| drop(model.update(batch, &|| false).unwrap()));
    let (bytes, evicted) = in_memory(&model);
    assert!(bytes > 300_000 && evicted == 0, "{bytes} bytes");
    assert_eq!(tiles(&model), tiles(&learnt(&tiled(Mapped::Strength), &corridor(16.0))));
}
