//! Finished runs in a folder, a file per split and method, so that an interrupted experiment can continue.

use super::super::comparison::Run;
use super::super::methods::Method;
use super::file::Table;
use super::protocol::Protocol;
use anyhow::anyhow;
use magmap::config::Config;
use magmap_tools::export::file::create_folder;
use magmap_tools::export::report::write_json;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the numbers of a run depend on beside its split and method.
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
    /// That of an experiment.
    ///
    /// # Errors
    /// When the settings cannot be written as TOML.
    pub fn of(table: &Table, protocol: &Protocol, config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            table: table.digest(),
            settings: format!("{:x}", Sha256::digest(config.to_toml()?)),
            protocol: protocol.clone(),
        })
    }

    /// The parts in which it differs from another.
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
    /// In a folder, which is created if it does not exist.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn open(folder: impl AsRef<Path>, fingerprint: Fingerprint) -> anyhow::Result<Self> {
        create_folder(folder.as_ref())?;
        Ok(Self { folder: folder.as_ref().to_owned(), fingerprint })
    }

    fn file(&self, split: usize, method: &str) -> PathBuf {
        self.folder.join(format!("split-{split}-{method}.json"))
    }

    /// A finished run, if it is stored.
    ///
    /// # Errors
    /// When the file is damaged, or of another experiment.
    pub fn get(&self, split: usize, method: &Method) -> anyhow::Result<Option<Run>> {
        let method = method.to_string();
        let path = self.file(split, &method);
        let unusable = |found: String| {
            anyhow!(
                "{}: expected a finished run of this experiment, found {found}: choose another folder, or remove the file",
                path.display()
            )
        };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unusable(error.to_string())),
        };
        let Trial { fingerprint, split: found, run }: Trial<Fingerprint, Run> =
            serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
        if fingerprint != self.fingerprint {
            return Err(unusable(format!("one with another {}", fingerprint.differs_in(&self.fingerprint))));
        }
        if (found, &run.method) != (split, &method) {
            return Err(unusable(format!("split {found} of {}", run.method)));
        }
        Ok(Some(run))
    }

    /// Keeps a finished run: the whole file is written, or none.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, split: usize, run: &Run) -> anyhow::Result<()> {
        let trial = Trial { fingerprint: &self.fingerprint, split, run };
        Ok(write_json(&self.file(split, &run.method), &trial)?)
    }
}
