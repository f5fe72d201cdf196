//! Files that are replaced whole or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

/// An operation on a file or folder that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}: {source}{advice}", path.display())]
pub struct FileError {
    /// The action that failed, such as `read`.
    action: &'static str,
    /// The file or folder.
    path: PathBuf,
    /// The error of the operating system, or of the format's library.
    source: io::Error,
    /// Advice, or what is not lost; may be empty.
    advice: &'static str,
}

impl FileError {
    /// Says what was tried: `File::open(path).map_err(FileError::of("read", path, ""))`.
    pub fn of(action: &'static str, path: impl Into<PathBuf>, advice: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self { action, path, source, advice }
    }
}

/// Writes a file so that a reader sees the old one or the new one, never a part, whatever happens meanwhile: `write` fills a
/// temporary file in the same folder, which is synced and renamed, and the folder is synced. After a failure the temporary file is
/// removed.
pub fn write_atomically<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let temporary = tempfile::Builder::new()
        .prefix(".magmap-")
        .suffix(".partial")
        .make_in(folder_of(path), |path| File::create_new(path))?;
    let (file, temporary) = temporary.into_parts();
    let mut writer = BufWriter::new(file);
    write(&mut writer)?;
    // A writer of archives may have returned to an earlier position; the file ends where its content does.
    writer.seek(io::SeekFrom::End(0))?;
    writer.flush()?;
    writer.get_ref().sync_all()?;
    temporary.persist(path)?;
    sync_folder_of(path)
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a rename survive a power cut, which is possible on Unix only.
pub fn sync_folder_of(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(folder_of(path))?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        write_atomically(&path, |writer| writer.write_all(b"a longer first version")).unwrap();
        write_atomically(&path, |writer| writer.write_all(b"second")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_no_temporary_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npz");
        fs::write(&path, "old").unwrap();
        let result = write_atomically(&path, |writer| {
            writer.write_all(b"half of the new")?;
            Err(io::Error::other("disk full"))
        });
        assert_eq!(result.unwrap_err().to_string(), "disk full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn of_two_concurrent_writers_one_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.npz");
        std::thread::scope(|scope| {
            for letter in [b'a', b'b'] {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write_atomically(path, |writer| writer.write_all(&[letter; 50_000])).unwrap();
                    }
                });
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 50_000 && bytes.iter().all(|byte| *byte == bytes[0]));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
