//! The pages of the documentation as a reader sees them, and the commands in them.
#![allow(dead_code)] // each test uses a part

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, CowStr, Event, Options, Parser, Tag, TagEnd};

/// The folder of the checkout.
pub fn checkout() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|folder| folder.join("Cargo.lock").is_file()).unwrap().canonicalize().unwrap()
}

/// The folder of the book.
pub fn book() -> PathBuf {
    checkout().join("docs")
}

/// The pages of the book, without its table of contents.
pub fn pages_of_the_book() -> Vec<PathBuf> {
    let files = fs::read_dir(book()).unwrap().map(|entry| entry.unwrap().path());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|is| is == "md") && !path.ends_with("SUMMARY.md");
    let mut pages: Vec<PathBuf> = files.filter(is_page).collect();
    pages.sort();
    pages
}

/// The pages of the book, and those beside the code.
pub fn pages() -> Vec<PathBuf> {
    let beside = ["README.md", "CONTRIBUTING.md", "crates/streaming-gp/README.md"];
    pages_of_the_book().into_iter().chain(beside.map(|page| checkout().join(page))).collect()
}

/// The text of a page, with the files that it includes (`{{#include FILE}}`).
pub fn text(page: &Path) -> String {
    let text = fs::read_to_string(page).unwrap();
    let line = |line: &str| match line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")) {
        Some(file) => {
            let file = page.with_file_name(file);
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {}: {error}", name(page), file.display()))
        }
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

/// The path of a page in the checkout.
pub fn name(page: &Path) -> String {
    page.strip_prefix(checkout()).unwrap().display().to_string()
}

/// The parts of a page.
pub fn events(text: &str) -> impl Iterator<Item = Event<'_>> {
    Parser::new_ext(text, Options::ENABLE_TABLES)
}

/// A block of code between fences.
pub struct Block {
    /// The language, and what else the fence says: `sh`, or `sh,example`.
    pub fence: String,
    /// The text of the block.
    pub text: String,
}

/// The blocks of code of a page, in order.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for event in events(text) {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(fence))) => {
                open = Some(Block { fence: fence.into_string(), text: String::new() });
            }
            Event::Text(text) => open.iter_mut().for_each(|block| block.text.push_str(&text)),
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

/// The commands of a block of `sh`, each as its words.
pub fn commands(shell: &str) -> Vec<Vec<String>> {
    let joined = shell.replace("\\\n", " ");
    let commands = joined.lines().flat_map(|line| line.split("&&"));
    commands.map(|command| shlex::split(command).unwrap_or_default()).filter(|words| !words.is_empty()).collect()
}

/// The commands of `program` on all pages, with the page: in blocks of `sh`, and in sentences. Commands with `...` are left out.
pub fn commands_of(program: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for page in pages() {
        let text = text(&page);
        let shell = blocks(&text).into_iter().filter(|block| block.fence.starts_with("sh"));
        let in_sentences = events(&text).filter_map(|event| match event {
            // Two words are the name of a command.
            Event::Code(code) if code.split_whitespace().count() > 2 => Some(CowStr::into_string(code)),
            _ => None,
        });
        let all = shell.map(|block| block.text).chain(in_sentences).flat_map(|text| commands(&text));
        let ours = all
            .filter(|words| words.len() > 1 && words[0] == program && !words.iter().any(|word| word.contains("...")));
        found.extend(ours.map(|words| (name(&page), words)));
    }
    found
}
