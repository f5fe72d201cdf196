//! The map of the field: prediction, learning, its state in a file, and its rasters.

pub mod engine;
mod error;
pub mod exact_evidence;
pub mod grid;
mod interpolation;
pub mod map;
pub mod model;
mod posterior;
mod process;
pub mod raster;
mod sensor_bias;
pub mod state;
pub mod tile_store;
mod tiles;
pub mod totals;

pub use error::Error;
pub use posterior::MapPosterior;
