//! Errors for people, as the programs print them.

/// An error and its causes, each once: many messages already contain that of their cause.
pub fn in_words(error: &anyhow::Error) -> String {
    let mut words = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !words.contains(&cause) {
            words.push_str(if words.is_empty() { "" } else { ": " });
            words.push_str(&cause);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cause_is_repeated() {
        let cause = std::io::Error::other("no space");
        let error = anyhow::Error::new(cause).context("cannot write map.png: no space").context("drawing");
        assert_eq!(in_words(&error), "drawing: cannot write map.png: no space");
    }
}
