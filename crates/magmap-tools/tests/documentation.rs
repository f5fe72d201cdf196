//! The documentation: its links lead somewhere, and its commands are those of the programs. That they parse is tested beside the
//! parsers, in the programs themselves.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::common::{command, expect, pages};
use magmap::config::Config;
use pulldown_cmark::{Event, Tag, TagEnd};
use tempfile::tempdir;

/// The anchor of a heading, as mdBook and GitHub name it.
fn anchor(heading: &str) -> String {
    let named = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()),
    };
    heading.chars().filter_map(named).collect()
}

/// The anchors of a page.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut anchors = Vec::new();
    let mut heading: Option<String> = None;
    for event in pages::events(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&heading.take().unwrap());
                let count = seen.entry(anchor.clone()).or_default();
                anchors.push(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
                *count += 1;
            }
            _ => {}
        }
    }
    anchors
}

/// Targets of the links and pictures of a page, but for other sites.
fn links(text: &str) -> Vec<String> {
    let links = pages::events(text).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some(dest_url.into_string()),
        _ => None,
    });
    links.filter(|link| !link.starts_with("https://") && !link.starts_with("http://")).collect()
}

// What may be wrong with a link.
const NO_FILE: &str = "leads to no file";
const NO_HEADING: &str = "leads to no heading of that page";
const OUT_OF_THE_BOOK: &str = "leads out of the book: name the file as `code` instead";

/// The fault of a link, if it has one.
fn fault(page: &Path, link: &str) -> Option<&'static str> {
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    let Ok(target) = target.canonicalize() else { return Some(NO_FILE) };
    if page.starts_with(pages::book()) && !target.starts_with(pages::book()) {
        return Some(OUT_OF_THE_BOOK);
    }
    let is_found = anchor.is_empty() || anchors(&pages::text(&target)).iter().any(|found| found == anchor);
    (!is_found).then_some(NO_HEADING)
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut pages = pages::pages();
    pages.extend([pages::book().join("SUMMARY.md"), pages::checkout().join("CHANGELOG.md")]);
    let mut count = 0;
    let mut faults = Vec::new();
    for page in pages {
        for link in links(&pages::text(&page)) {
            count += 1;
            faults.extend(fault(&page, &link).map(|fault| format!("{}: {link} {fault}", pages::name(&page))));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 100, "found only {count} links");
}

#[test]
fn broken_links_are_found() {
    let page = pages::book().join("promises.md");
    for (link, expected) in [
        ("map-file.md#damage", None),
        ("#which-maps-are-kept", None),
        ("jurnal.md", Some(NO_FILE)),
        ("map-file.md#damages", Some(NO_HEADING)),
        ("#soaked", Some(NO_HEADING)),
        ("../README.md", Some(OUT_OF_THE_BOOK)),
    ] {
        assert_eq!(fault(&page, link), expected, "{link}");
    }
    assert_eq!(anchors("# A: `b`, c & d\n\n## A\n\n## A\n"), ["a-b-c--d", "a", "a-1"]);
}

#[test]
fn the_table_of_contents_lists_every_page_once() {
    let listed = links(&fs::read_to_string(pages::book().join("SUMMARY.md")).unwrap());
    let mut listed: Vec<PathBuf> = listed.iter().map(|link| pages::book().join(link)).collect();
    listed.sort();
    assert_eq!(listed, pages::pages_of_the_book());
}

#[test]
fn commands_are_known_or_said_to_be_examples() {
    for page in pages::pages_of_the_book() {
        let text = pages::text(&page);
        for block in pages::blocks(&text).iter().filter(|block| block.fence == "sh") {
            for words in pages::commands(&block.text) {
                let is_known = matches!(&*words[0], "magmap" | "magmap-evaluate") || launch_file(&words).is_some();
                let name = pages::name(&page);
                assert!(is_known, "{name}: no test knows `{}`: begin its block with ```sh,example", words.join(" "));
            }
        }
    }
}

/// The launch file of magmap that a command launches.
fn launch_file(words: &[String]) -> Option<&str> {
    let is_ours = words.get(..3).is_some_and(|words| *words == ["ros2", "launch", "magmap"]);
    words.get(3).filter(|_| is_ours).map(String::as_str)
}

#[test]
fn arguments_of_launch_files_are_declared() {
    let read = |name: &str| fs::read_to_string(pages::checkout().join("launch").join(name)).unwrap();
    let mut count = 0;
    for (page, words) in pages::commands_of("ros2") {
        let Some(file) = launch_file(&words) else { continue };
        // Those of mapping.launch.py are arguments of a replay as well; the localizer lists those that it shares.
        let declared = read(file) + &if file == "replay.launch.py" { read("mapping.launch.py") } else { String::new() };
        for argument in words.iter().filter_map(|word| Some(word.split_once(":=")?.0)) {
            assert!(declared.contains(&format!("'{argument}'")), "{page}: {argument} is no argument of {file}");
            count += 1;
        }
    }
    assert!(count > 10, "found only {count} arguments");
}

#[test]
fn settings_in_commands_are_valid() {
    let mut count = 0;
    for (page, words) in ["magmap", "magmap-evaluate"].into_iter().flat_map(pages::commands_of) {
        let settings: Vec<String> =
            words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1].clone()).collect();
        count += settings.len();
        if let Err(error) = Config::default().apply_overrides(&settings) {
            panic!("{page}: {}: {error}", words.join(" "));
        }
    }
    assert!(count > 10, "found only {count} settings");
}

/// A line with its numbers left out.
fn shape(line: &str) -> String {
    let words = line.split(|letter: char| letter.is_ascii_digit() || letter == '.' || letter.is_whitespace());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Runs the tutorial from its beginning to its end: each block of magmap's commands, whose output has to have the lines of the block of
/// `text` that follows, but for the numbers.
#[cfg(unix)]
#[test]
#[ignore = "takes ten seconds; run with --ignored"]
fn the_tutorial_runs_as_it_is_written() {
    let folder = tempdir().unwrap();
    let programs = Path::new(env!("CARGO_BIN_EXE_magmap")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let text = pages::text(&pages::book().join("tutorial.md"));
    let (mut runs, mut output) = (0, String::new());
    for block in pages::blocks(&text) {
        match &*block.fence {
            "sh" if pages::commands(&block.text).iter().all(|words| words[0] == "magmap") => {
                let mut shell = command("sh", &["-euc", &block.text], folder.path());
                output = expect(0, {
                    shell.env("PATH", &path);
                    shell
                })
                .0;
                runs += 1;
            }
            "text" => {
                let found: Vec<String> = output.lines().map(shape).collect();
                for line in block.text.lines().filter(|line| *line != "...") {
                    assert!(found.contains(&shape(line)), "the tutorial shows\n{line}\nbut the output is\n{output}");
                }
            }
            _ => {}
        }
    }
    assert!(runs >= 5, "the tutorial has only {runs} blocks of commands");
}
