//! A map is the fold of what was kept of its drive.

use magmap::config::{Config, Mapped};
use magmap::mapping::mapper::Mapper;
use magmap::mapping::thread::{MappingThread, Mode};
use magmap::store::Database;
use magmap::store::map_log::{MapLog, Options};
use magmap::trajectory;
use magmap_tools::simulation::{DipoleOptions, Route, Simulation, demo};

/// Drives, folds the trajectory in the file of the map, and compares everything that both models know.
#[track_caller]
fn assert_folds_to_the_same_map(change: impl FnOnce(&mut Config)) {
    let world = DipoleOptions { size: [6.0, 4.0], under: 10, beside: 4, ..Default::default() };
    let simulation = Simulation { world, route: Route::LawnMower { spacing: 0.8 }, duration: 100.0, ..demo() };
    let mut config = Config::default();
    change(&mut config);
    let folder = tempfile::tempdir().unwrap();
    let (map, mapper) = (folder.path().join("map.magmap"), Mapper::new(&config));
    let log = MapLog::create(&map, &mapper, Options::default()).unwrap();
    let mapping = MappingThread::start(Mode::WaitForLearning, mapper, Some(Box::new(log)), None).unwrap();
    for sample in simulation.drive(&simulation.world().unwrap()).unwrap() {
        mapping.inbox.send(sample.measurement).unwrap();
    }
    let driven = mapping.join().unwrap().mapper.model().state();

    let batches = Database::open_to_read(&map).unwrap().trajectory().unwrap();
    assert!(batches.len() >= 8, "{} batches", batches.len());
    let folded = trajectory::fold(&config, &batches, &|| false).state();
    assert!(driven.totals.updates >= 8 && driven.extent.is_some(), "{:?}", driven.totals);
    assert!(folded == driven, "folding {} batches leads to another map", batches.len());
    // What is compared tells maps apart.
    let without_last = trajectory::fold(&config, &batches[..batches.len() - 1], &|| false).state();
    assert!(without_last != driven);
}

#[test]
fn a_map_of_the_strength_is_folded_to_the_last_bit() {
    assert_folds_to_the_same_map(|config| config.model.field = Mapped::Strength);
}

#[test]
fn a_map_of_three_axes_is_folded_to_the_last_bit() {
    assert_folds_to_the_same_map(|config| config.model.field = Mapped::Vector);
}

#[test]
fn maps_of_tiles_are_folded_to_the_last_bit() {
    for field in [Mapped::Strength, Mapped::Vector] {
        assert_folds_to_the_same_map(|config| {
            config.model.field = field;
            config.tiles.size = 2.0;
        });
    }
}
