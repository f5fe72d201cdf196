//! Earlier maps: their names, and how many are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;

use crate::files::{folder_of, sync_folder_of};

/// The time in the name of an earlier map, in UTC.
const TIME: &str = "%Y-%m-%dT%H-%M-%SZ";

/// Extension of a map's file.
pub(super) const EXTENSION: &str = "magmap";

/// Endings of the file of a map, and of what a process that died may leave beside it.
const SIBLINGS: [&str; 3] = ["", "-wal", "-journal"];

/// The file beside that of a map whose name ends like this.
pub(super) fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// The file of a map, and what a process that died may leave beside it.
pub(super) fn siblings(path: &Path) -> impl Iterator<Item = PathBuf> {
    SIBLINGS.iter().map(|ending| sibling(path, ending))
}

/// A free path for an earlier map beside `path`: its name and the current time.
pub(super) fn earlier_path(path: &Path) -> PathBuf {
    let stem = stem(path).unwrap_or_default();
    let name = dated(stem).map_or(stem, |(name, _)| name);
    let time = Timestamp::now().strftime(TIME).to_string();
    let stems = std::iter::once(format!("{name}.{time}")).chain((2..).map(|n| format!("{name}.{time}-{n}")));
    let mut paths = stems.map(|stem| path.with_file_name(format!("{stem}.{EXTENSION}")));
    // There is always a free number.
    paths.find(|path| siblings(path).all(|path| !path.exists())).unwrap_or_default()
}

/// Renames what is at the path of a map to an earlier map, of which at most `most` are kept per name; its new path, if there was
/// anything.
pub(super) fn set_aside(path: &Path, most: usize) -> io::Result<Option<PathBuf>> {
    let free = earlier_path(path);
    let mut is_there = false;
    // What belongs to the file comes first: a file without it would be another map.
    for ending in SIBLINGS.iter().rev() {
        let existing = sibling(path, ending);
        if existing.exists() {
            fs::rename(existing, sibling(&free, ending))?;
            is_there = true;
        }
    }
    if !is_there {
        return Ok(None);
    }
    sync_folder_of(&free)?;
    remove_oldest(path, most);
    Ok(Some(free))
}

/// Removes the oldest earlier maps of this name until at most `most` are left, and logs each.
pub(super) fn remove_oldest(path: &Path, most: usize) {
    let name = stem(path).unwrap_or_default();
    let name = dated(name).map_or(name, |(name, _)| name);
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return };
    let mut kept: Vec<((String, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let (of, time) = dated(stem(&path)?)?;
            (of == name).then(|| (time, path.clone()))
        })
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(most);
    for (_, oldest) in kept.drain(..surplus) {
        match fs::remove_file(&oldest) {
            Ok(()) => log::warn!("{} is removed: more than {most} earlier maps (node.earlier_maps)", oldest.display()),
            Err(error) => log::warn!("cannot remove {}: {error}", oldest.display()),
        }
        SIBLINGS[1..].iter().for_each(|ending| drop(fs::remove_file(sibling(&oldest, ending))));
    }
}

/// The name of a map's file without its extension; none for other files.
fn stem(path: &Path) -> Option<&str> {
    let (stem, extension) = path.file_name()?.to_str()?.rsplit_once('.')?;
    (extension == EXTENSION).then_some(stem)
}

/// The original name of an earlier map, and its time with the number that distinguishes those of one second.
fn dated(stem: &str) -> Option<(&str, (String, u32))> {
    let (name, time) = stem.rsplit_once('.')?;
    let (time, number) = match time.split_once("Z-") {
        Some((time, number)) => (format!("{time}Z"), number.parse().ok()?),
        None => (time.to_owned(), 1),
    };
    BrokenDownTime::parse(TIME, &time).ok()?;
    Some((name, (time, number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_name_of_an_earlier_map_has_a_time_and_is_unique() {
        let folder = tempfile::tempdir().unwrap();
        let map = folder.path().join("hall.v2.magmap");
        assert_eq!(set_aside(&map, 100).unwrap(), None);
        let mut all = Vec::new();
        for round in 0..4 {
            fs::write(&map, [round]).unwrap();
            fs::write(sibling(&map, "-wal"), [round + 10]).unwrap();
            all.push(set_aside(&map, 100).unwrap().unwrap());
        }
        for (round, path) in all.iter().enumerate() {
            assert_eq!(fs::read(path).unwrap(), [round as u8]);
            assert_eq!(fs::read(sibling(path, "-wal")).unwrap(), [round as u8 + 10]);
        }
        let stems: std::collections::HashSet<_> = all.iter().map(|path| stem(path).unwrap()).collect();
        assert_eq!(stems.len(), 4, "{all:?}");
        assert!(stems.iter().all(|stem| dated(stem).is_some_and(|(name, _)| name == "hall.v2")), "{stems:?}");
        // An earlier map that becomes one again keeps its original name.
        let again = earlier_path(&all[0]);
        assert_eq!(dated(stem(&again).unwrap()).unwrap().0, "hall.v2");
    }

    #[test]
    fn the_oldest_are_removed_and_other_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let old = ["map.2020-01-01T00-00-00Z", "map.2020-01-01T00-00-00Z-2", "map.2020-01-01T00-00-00Z-10"];
        let old = old.map(|name| format!("{name}.magmap"));
        let others =
            ["map.magmap", "other.2019-01-01T00-00-00Z.magmap", "map.2019.magmap", "map.2019-01-01T00-00-00Z.txt"];
        let names_of_others = others.iter().map(ToString::to_string);
        old.iter().cloned().chain(names_of_others.clone()).for_each(|name| fs::write(file(&name), "").unwrap());
        fs::write(sibling(&file(&old[1]), "-wal"), "").unwrap();
        remove_oldest(&file("map.magmap"), 1);
        let mut expected: Vec<String> = names_of_others.chain([old[2].clone()]).collect();
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }
}
