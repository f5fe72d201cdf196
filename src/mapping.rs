//! From readings and poses to batches, and from finished updates to rasters.

pub mod field_model;
pub mod grid;
pub mod reading;
