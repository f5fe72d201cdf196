//! How bags are stored, as an argument.

use clap::ValueEnum;
use magmap::recording::writer::Storage;

/// How bags are stored.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum StorageArgument {
    /// MCAP, compressed with zstd.
    #[default]
    Mcap,
    /// SQLite, as ROS 2 Humble stores it.
    Sqlite3,
}

impl From<StorageArgument> for Storage {
    fn from(argument: StorageArgument) -> Self {
        match argument {
            StorageArgument::Mcap => Self::Mcap,
            StorageArgument::Sqlite3 => Self::Sqlite3,
        }
    }
}
