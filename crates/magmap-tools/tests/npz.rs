//! Reads `.npz` files.

use std::fs::File;
use std::path::Path;

use npyz::npz::file_name_from_array_name;
use npyz::{Deserialize, NpyFile};
use zip::ZipArchive;

/// Shape and values of an array, if the file has it.
pub fn find<T: Deserialize>(file: &Path, name: &str) -> Option<(Vec<u64>, Vec<T>)> {
    let mut archive = ZipArchive::new(File::open(file).unwrap()).unwrap();
    let name = file_name_from_array_name(name);
    if !archive.file_names().any(|file| file == name) {
        return None;
    }
    let array = NpyFile::new(archive.by_name(&name).unwrap()).unwrap();
    Some((array.shape().to_vec(), array.into_vec().unwrap()))
}

/// Shape and values of an array.
#[track_caller]
pub fn read<T: Deserialize>(file: &Path, name: &str) -> (Vec<u64>, Vec<T>) {
    find(file, name).unwrap_or_else(|| panic!("expected an array {name} in {}", file.display()))
}
