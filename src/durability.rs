//! Maps on disk, so that nothing that was learnt is lost.
//!
//! A [`checkpoint`] is a file with a map and the state of the stream that leads to it. The [`journal`] is the write-ahead log of
//! every step since the last checkpoint. The [`map_store`] decides which map a run continues, and never overwrites another.

pub mod checkpoint;
mod error;
pub mod journal;
pub mod map_store;
pub mod tile_folder;

pub use self::error::Error;
