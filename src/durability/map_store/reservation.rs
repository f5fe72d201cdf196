//! One process per map, even before there is anything in the map's folder that could be locked.

use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::in_use;
use crate::durability::Error;

/// Digits of the map's name in that of the lock.
const DIGITS: usize = 16;

/// During its lifetime no other process of this machine maps under the same name. It leaves nothing in the map's folder.
#[derive(Debug)]
pub struct Reservation {
    /// Locked until it is closed, however the process ends. `None` where it cannot be created; the journal's lock remains.
    _lock: Option<File>,
}

impl Reservation {
    /// Prevents other processes of this machine from mapping under the name of this map, for the lifetime of the reservation.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub fn of(map: &Path) -> Result<Self, Error> {
        let path = std::env::temp_dir().join(lock_name(map));
        let Ok(mut lock) = File::options().create(true).truncate(false).read(true).write(true).open(&path) else {
            log::debug!("cannot create {}; a second process with the same map is detected later", path.display());
            return Ok(Self { _lock: None });
        };
        match lock.try_lock() {
            Ok(()) => {
                let process = std::process::id().to_string();
                // Only for the message of a second process.
                let _ = lock.set_len(0).and_then(|()| lock.write_all(process.as_bytes()));
                Ok(Self { _lock: Some(lock) })
            }
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let read = lock.rewind().and_then(|()| (&mut lock).take(20).read_to_string(&mut text));
                Err(in_use(map, read.ok().and_then(|_| text.trim().parse().ok())))
            }
            Err(TryLockError::Error(error)) => {
                log::debug!("cannot lock {}: {error}", path.display());
                Ok(Self { _lock: None })
            }
        }
    }
}

/// The same for every spelling of a path, whether the map exists or not.
fn lock_name(map: &Path) -> String {
    let digest = format!("{:x}", Sha256::digest(absolute(map).as_os_str().as_encoded_bytes()));
    format!("magmap-{}.lock", &digest[..DIGITS])
}

/// The absolute path, without links in its existing part.
fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let existing = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    match existing {
        Some((part, real)) => path.strip_prefix(part).map_or(real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_reserved_once_without_a_trace_in_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let map = folder.path().join("maps").join("map.npz");
        let first = Reservation::of(&map).unwrap();
        let same = folder.path().join(".").join("maps").join("map.npz");
        let message = Reservation::of(&same).unwrap_err().to_string();
        let expected = format!("is being written by another process ({})", std::process::id());
        assert!(message.contains(&expected) && message.contains("map_name:=NAME"), "{message}");
        Reservation::of(&map.with_file_name("other.npz")).unwrap();
        drop(first);
        Reservation::of(&map).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
