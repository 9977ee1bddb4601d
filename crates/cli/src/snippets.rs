//! The code blocks of a page.

/// A code block. Behind its fence stands its language; a program that is to be run has three
/// or four words there: its language, the file it belongs in, the client it is for, and
/// `owner` if it is for whoever may declare queues.
#[derive(Debug, Clone)]
pub(crate) struct Snippet<'a> {
    /// What stands behind the fence.
    pub(crate) words: Vec<&'a str>,
    /// The line its fence is in, from 1.
    #[allow(dead_code, reason = "of use to tests")]
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// The code blocks of a page, in their order.
pub(crate) fn snippets(page: &str) -> Vec<Snippet<'_>> {
    let mut lines = page.lines().enumerate();
    let mut found = Vec::new();
    while let Some((number, line)) = lines.next() {
        let Some(words) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        let text = inside.map(|line| format!("{line}\n")).collect();
        found.push(Snippet { words: words.split_whitespace().collect(), line: number + 1, text });
    }
    found
}
