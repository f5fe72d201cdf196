//! Output folders and files, with errors that name them.

use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::Path;

use super::Error;
use magmap::files::FileError;

/// Creates the folder and its parents unless they exist.
pub fn create_folder(path: &Path) -> Result<(), Error> {
    if path.exists() && !path.is_dir() {
        return Err(Error::NotAFolder(path.to_owned()));
    }
    let advice = "; choose another folder or change its permissions";
    Ok(fs::create_dir_all(path).map_err(FileError::of("create the output folder", path, advice))?)
}

/// Whether there is anything in a folder.
pub(crate) fn holds_files(path: &Path) -> Result<bool, Error> {
    let mut entries = fs::read_dir(path).map_err(FileError::of("read the output folder", path, ""))?;
    Ok(entries.next().is_some())
}

/// The error for a file that cannot be written.
pub(crate) fn unwritten(path: &Path) -> impl FnOnce(io::Error) -> FileError {
    FileError::of("write", path, "; nothing half-written is in its place")
}

/// Writes a file atomically: a reader sees the old one or the new one, never a part.
pub fn write_atomically(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Error> {
    Ok(magmap::files::write_atomically(path, write).map_err(unwritten(path))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_file_and_the_cause() {
        let folder = tempfile::tempdir().unwrap();
        let result = write_atomically(&folder.path().join("map.npz"), |_| Err(io::Error::other("disk full")));
        let message = result.unwrap_err().to_string();
        assert!(message.contains("map.npz") && message.contains("disk full"), "{message}");
    }

    #[test]
    fn folders_are_created_with_their_parents_and_a_file_in_the_way_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("a/b/c");
        create_folder(&deep).unwrap();
        create_folder(&deep).unwrap();
        assert!(deep.is_dir());

        let file = folder.path().join("taken");
        fs::write(&file, "").unwrap();
        assert!(matches!(create_folder(&file), Err(Error::NotAFolder(_))));
        assert!(matches!(create_folder(&file.join("below")), Err(Error::File(_))));
    }
}
