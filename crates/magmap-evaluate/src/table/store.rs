//! What is finished, in a folder: a file per split and method, to go on from.

use super::super::Error;
use super::super::contest::Run;
use super::super::methods::Named;
use super::{Protocol, Table};
use magmap::config::Config;
use magmap::export::file::create_folder;
use magmap::export::report::write_json;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the numbers of a run depend on, but for its split and method.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of magmap.
    version: String,
    /// Digest of the table.
    table: String,
    /// Digest of the settings.
    settings: String,
    protocol: Protocol,
}

impl Fingerprint {
    /// Of an experiment.
    ///
    /// # Errors
    /// When the settings cannot be written down.
    pub fn of(table: &Table, protocol: &Protocol, config: &Config) -> Result<Self, Error> {
        let settings = Sha256::digest(config.to_toml()?);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            table: table.digest(),
            settings: settings.iter().map(|byte| format!("{byte:02x}")).collect(),
            protocol: protocol.clone(),
        })
    }

    /// In what it differs from another.
    fn differs_in(&self, other: &Self) -> String {
        let parts = [
            ("version of magmap", self.version != other.version),
            ("table", self.table != other.table),
            ("settings", self.settings != other.settings),
            ("target, test share, batches or seed", self.protocol != other.protocol),
        ];
        let parts: Vec<&str> = parts.iter().filter(|(_, differs)| *differs).map(|(part, _)| *part).collect();
        parts.join(" and ")
    }
}

/// A folder of finished runs.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    fingerprint: Fingerprint,
}

#[derive(Serialize, Deserialize)]
struct Trial<F, R> {
    fingerprint: F,
    split: usize,
    run: R,
}

impl Store {
    /// In a folder, which is made where it does not exist.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(folder: impl AsRef<Path>, fingerprint: Fingerprint) -> Result<Self, Error> {
        create_folder(folder.as_ref())?;
        Ok(Self { folder: folder.as_ref().to_owned(), fingerprint })
    }

    fn file(&self, split: usize, method: &str) -> PathBuf {
        self.folder.join(format!("split-{split}-{method}.json"))
    }

    /// A finished run; none where it is not there yet.
    ///
    /// # Errors
    /// When the file is damaged, or of another experiment.
    pub fn get(&self, split: usize, method: &Named) -> Result<Option<Run>, Error> {
        let path = self.file(split, &method.to_string());
        let damaged = |found: String| Error::Stored { path: path.clone(), found };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
        };
        let trial: Trial<Fingerprint, Run> =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if trial.fingerprint != self.fingerprint {
            return Err(damaged(format!("one with another {}", trial.fingerprint.differs_in(&self.fingerprint))));
        }
        if (trial.split, trial.run.method.as_str()) != (split, method.to_string().as_str()) {
            return Err(damaged(format!("split {} of {}", trial.split, trial.run.method)));
        }
        Ok(Some(trial.run))
    }

    /// Keeps a finished run: the whole file is written, or none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, split: usize, run: &Run) -> Result<(), Error> {
        let trial = Trial { fingerprint: &self.fingerprint, split, run };
        Ok(write_json(&self.file(split, &run.method), &trial)?)
    }
}
