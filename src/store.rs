//! Maps on disk, so that nothing that was learnt is lost.
//!
//! A map is one file, a [`database`]: [checkpoints](checkpoint), which are the state of the map at some moments, the steps since, local
//! models that are not in memory, and the trajectory. A [`map_log`] writes it while the map is made, and [`recovery`] reads it. The
//! [`map_file`] says which map a run continues; no map is ever overwritten by another.

pub mod checkpoint;
pub mod database;
mod earlier_maps;
mod error;
pub mod list;
pub mod map_file;
pub mod map_log;
pub mod recovery;
pub mod status;
#[cfg(test)]
mod tests;
mod writer;

pub use self::database::Database;
pub use self::error::Error;
