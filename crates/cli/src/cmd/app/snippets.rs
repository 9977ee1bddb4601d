//! The code blocks of a page.

/// A code block. The word behind its fence is its language. A program to run has three or four
/// words there: its language, its file, its client, and `owner` if it needs the permission to
/// declare queues.
#[derive(Debug, Clone)]
pub(crate) struct Snippet<'a> {
    /// The words behind the fence.
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
        // One in a list is indented.
        let Some((indent, words)) = line.split_once("```").filter(|(indent, _)| indent.trim().is_empty())
        else {
            continue;
        };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
        let text = inside.map(|line| format!("{}\n", line.strip_prefix(indent).unwrap_or(line))).collect();
        found.push(Snippet { words: words.split_whitespace().collect(), line: number + 1, text });
    }
    found
}
