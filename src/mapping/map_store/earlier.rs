//! Earlier maps: what their names are, and how many are kept.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;

/// The time in the name of an earlier map, in UTC.
const TIME: &str = "%Y-%m-%dT%H-%M-%SZ";

/// What ends the name of a map's file and of its journal.
const ENDINGS: [&str; 2] = ["npz", "journal"];

/// A free name for a map or journal that makes room, beside it: its name and the time of now. A file and a journal never share one.
pub(in crate::mapping) fn earlier(path: &Path) -> PathBuf {
    let (name, ending) = parts(path);
    let name = dated(name).map_or(name, |(name, _)| name);
    let time = Timestamp::now().strftime(TIME).to_string();
    let stems = std::iter::once(format!("{name}.{time}")).chain((2..).map(|n| format!("{name}.{time}-{n}")));
    let file = |stem: &str, ending: &str| path.with_file_name(format!("{stem}.{ending}"));
    let is_free = |stem: &String| ENDINGS.iter().all(|ending| !file(stem, ending).exists());
    // There is always a next number.
    let free = stems.into_iter().find(is_free).unwrap_or_default();
    file(&free, ending)
}

/// Renames a map or journal to an earlier map, of which at most `most` are kept for each name, and returns its new path.
pub(in crate::mapping) fn set_aside(path: &Path, most: usize) -> io::Result<PathBuf> {
    let free = earlier(path);
    fs::rename(path, &free)?;
    crate::files::sync_folder_of(&free)?;
    make_room(path, most);
    Ok(free)
}

/// Removes the oldest earlier maps of this name until at most `most` are left, each with a line in the log.
pub(in crate::mapping) fn make_room(path: &Path, most: usize) {
    let (name, _) = parts(path);
    let name = dated(name).map_or(name, |(name, _)| name);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut kept: Vec<((String, u32), PathBuf)> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let (stem, ending) = parts(&path);
            let (of, time) = dated(stem)?;
            (of == name && ENDINGS.contains(&ending)).then(|| (time, path.clone()))
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

/// Name and ending of a map's file or journal.
fn parts(path: &Path) -> (&str, &str) {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.rsplit_once('.').unwrap_or((name, ""))
}

/// The name of the map that an earlier map had, and its time with the number that tells those of one second apart.
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
    fn an_earlier_map_has_the_name_and_the_time_and_none_has_that_of_another() {
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
        // One that was chosen by its name and makes room again keeps its first name.
        let again = earlier(&all[0]);
        assert_eq!(dated(parts(&again).0).unwrap().0, "hall.v2");
    }

    #[test]
    fn the_oldest_make_room_and_other_names_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let old = ["map.2020-01-01T00-00-00Z.npz", "map.2020-01-01T00-00-00Z-2.npz", "map.2020-01-01T00-00-00Z-10.npz"];
        let others = ["map.npz", "other.2019-01-01T00-00-00Z.npz", "map.2019.npz", "map.2019-01-01T00-00-00Z.txt"];
        old.iter().chain(&others).for_each(|name| fs::write(file(name), "").unwrap());
        fs::create_dir(file("map.2020-01-02T00-00-00Z.journal")).unwrap();
        make_room(&file("map.npz"), 2);
        let mut expected = vec![old[2], "map.2020-01-02T00-00-00Z.journal"];
        expected.extend(others);
        expected.sort_unstable();
        assert_eq!(names(folder.path()), expected);
    }
}
