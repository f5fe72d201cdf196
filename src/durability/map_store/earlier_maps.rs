//! Earlier maps: their names, and how many are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;

use crate::files::{folder_of, sync_folder_of};

/// The time in the name of an earlier map, in UTC.
const TIME: &str = "%Y-%m-%dT%H-%M-%SZ";

/// Extensions of a map's file and of its journal.
const EXTENSIONS: [&str; 2] = ["npz", "journal"];

/// A free path for an earlier map beside `path`: its name and the current time. A file and a journal never share a name.
pub(in crate::durability) fn earlier_path(path: &Path) -> PathBuf {
    let (name, extension) = parts(path);
    let name = dated(name).map_or(name, |(name, _)| name);
    let time = Timestamp::now().strftime(TIME).to_string();
    let stems = std::iter::once(format!("{name}.{time}")).chain((2..).map(|n| format!("{name}.{time}-{n}")));
    let file = |stem: &str, extension: &str| path.with_file_name(format!("{stem}.{extension}"));
    let is_free = |stem: &String| EXTENSIONS.iter().all(|extension| !file(stem, extension).exists());
    // There is always a free number.
    let free = stems.into_iter().find(is_free).unwrap_or_default();
    file(&free, extension)
}

/// Renames a map or journal to an earlier map, of which at most `most` are kept per name, and returns its new path.
pub(in crate::durability) fn set_aside(path: &Path, most: usize) -> io::Result<PathBuf> {
    let free = earlier_path(path);
    fs::rename(path, &free)?;
    sync_folder_of(&free)?;
    remove_oldest(path, most);
    Ok(free)
}

/// Removes the oldest earlier maps of this name until at most `most` are left, and logs each.
pub(in crate::durability) fn remove_oldest(path: &Path, most: usize) {
    let (name, _) = parts(path);
    let name = dated(name).map_or(name, |(name, _)| name);
    let Ok(entries) = fs::read_dir(folder_of(path)) else { return };
    let mut kept: Vec<((String, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let (stem, extension) = parts(&path);
            let (of, time) = dated(stem)?;
            (of == name && EXTENSIONS.contains(&extension)).then(|| (time, path.clone()))
        })
        .collect();
    kept.sort();
    let surplus = kept.len().saturating_sub(most);
    for (_, oldest) in kept.drain(..surplus) {
        let removed = if oldest.is_dir() { fs::remove_dir_all(&oldest) } else { fs::remove_file(&oldest) };
        match removed {
            Ok(()) => log::warn!("{} is removed: more than {most} earlier maps (node.earlier_maps)", oldest.display()),
            Err(error) => log::warn!("cannot remove {}: {error}", oldest.display()),
        }
    }
}

/// Name and extension of a map's file or journal.
fn parts(path: &Path) -> (&str, &str) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.rsplit_once('.').unwrap_or((name, ""))
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
        let map = folder.path().join("hall.v2.npz");
        let mut all = Vec::new();
        for round in 0..4 {
            fs::write(&map, [round]).unwrap();
            all.push(set_aside(&map, 100).unwrap());
        }
        let journal = map.with_extension("journal");
        fs::create_dir(&journal).unwrap();
        all.push(set_aside(&journal, 100).unwrap());
        for (round, path) in all.iter().enumerate().take(4) {
            assert_eq!(fs::read(path).unwrap(), [round as u8]);
        }
        let stems: std::collections::HashSet<_> = all.iter().map(|path| parts(path).0.to_owned()).collect();
        assert_eq!(stems.len(), 5, "{all:?}");
        assert!(stems.iter().all(|stem| dated(stem).is_some_and(|(name, _)| name == "hall.v2")), "{stems:?}");
        // An earlier map that becomes one again keeps its original name.
        let again = earlier_path(&all[0]);
        assert_eq!(dated(parts(&again).0).unwrap().0, "hall.v2");
    }

    #[test]
    fn the_oldest_are_removed_and_other_names_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let old = ["map.2020-01-01T00-00-00Z.npz", "map.2020-01-01T00-00-00Z-2.npz", "map.2020-01-01T00-00-00Z-10.npz"];
        let others = ["map.npz", "other.2019-01-01T00-00-00Z.npz", "map.2019.npz", "map.2019-01-01T00-00-00Z.txt"];
        old.iter().chain(&others).for_each(|name| fs::write(file(name), "").unwrap());
        fs::create_dir(file("map.2020-01-02T00-00-00Z.journal")).unwrap();
        remove_oldest(&file("map.npz"), 2);
        let mut expected = vec![old[2], "map.2020-01-02T00-00-00Z.journal"];
        expected.extend(others);
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }
}
