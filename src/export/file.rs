//! Folders and files: made with clear errors, replaced whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use super::Error;

/// Makes the folder and its parents where they do not exist yet.
pub fn create_folder(path: &Path) -> Result<(), Error> {
    if path.exists() && !path.is_dir() {
        return Err(Error::NotAFolder { path: path.to_owned() });
    }
    fs::create_dir_all(path).map_err(|source| Error::CreateFolder { path: path.to_owned(), source })
}

/// Writes a file so that a reader sees the old one or the new one, never a part: `write` fills a temporary file in the same
/// folder, which is synced and renamed. When anything fails the temporary file is removed.
pub fn write_atomically<F>(path: &Path, write: F) -> Result<(), Error>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let temporary = temporary_beside(path);
    let written = fill(&temporary, write).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|source| {
        // The first failure is the one worth reporting.
        let _ = fs::remove_file(&temporary);
        Error::Write { path: path.to_owned(), source }
    })
}

fn fill<F>(path: &Path, write: F) -> io::Result<()>
where
    F: FnOnce(&mut BufWriter<File>) -> io::Result<()>,
{
    let mut writer = BufWriter::new(File::create(path)?);
    write(&mut writer)?;
    // A writer of archives may have gone back to an earlier place; the file ends where its content does.
    writer.seek(io::SeekFrom::End(0))?;
    writer.flush()?;
    writer.get_ref().sync_all()
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.partial", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
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
        let message = result.unwrap_err().to_string();
        assert!(message.contains("map.npz") && message.contains("disk full"), "{message}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folders_are_made_with_their_parents_and_a_file_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).unwrap();
        create_folder(&deep).unwrap();
        assert!(deep.is_dir());

        let file = folder.path().join("taken");
        fs::write(&file, "").unwrap();
        assert!(matches!(create_folder(&file), Err(Error::NotAFolder { .. })));
        assert!(matches!(create_folder(&file.join("below")), Err(Error::CreateFolder { .. })));
    }
}
