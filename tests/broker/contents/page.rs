//! Reads and writes docs/reference/message-outcomes.md and its two tables.

use std::{collections::BTreeMap, fmt, fs};

use super::targets::Target;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/message-outcomes.md");

/// Marks the rows of a table.
const TARGETS: &str = "<!-- targets -->";
const CONTENTS: &str = "<!-- contents -->";

/// What separates the names of a row: those with the same outcomes share one.
const NEXT: &str = "; ";

/// The text of a cell in which each target has the same outcome as for a plain message.
const SAME: &str = "same";

/// Two targets that have one name in a cell.
const STREAMS: (&str, &str) = ("stream, exchange to a stream", "streams");

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// The message has arrived at the end of its route.
    Delivered,
    /// The message is in the unroutable queue.
    Kept,
    /// The broker refused the message when it was published.
    Refused,
    /// The message takes up a place of its level.
    Blocks,
    /// No level of the node hands on messages.
    Ends,
}

impl Outcome {
    const ALL: [Self; 5] = [Self::Delivered, Self::Kept, Self::Refused, Self::Blocks, Self::Ends];

    fn parse(word: &str) -> Self {
        let found = Self::ALL.into_iter().find(|outcome| outcome.to_string() == word);
        found.unwrap_or_else(|| panic!("`{word}` is no outcome"))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delivered => "delivered",
            Self::Kept => "kept",
            Self::Refused => "refused",
            Self::Blocks => "**blocks**",
            Self::Ends => "**ends**",
        })
    }
}

/// A column of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Series(usize);

impl Series {
    pub(super) fn of(version: &str) -> Self {
        let numbers: Vec<u32> = version.split('.').filter_map(|part| part.parse().ok()).take(2).collect();
        Self(match numbers.as_slice() {
            [..=3, ..] => 0,
            [4, ..=2] => 1,
            _ => 2,
        })
    }
}

/// The document, and its outcomes by the numbers of content and target.
pub(super) struct Page<'a> {
    document: String,
    versions: [String; 3],
    contents: &'a [&'a str],
    targets: Vec<&'static str>,
    cells: BTreeMap<(usize, usize), [Option<Outcome>; 3]>,
}

impl<'a> Page<'a> {
    pub(super) fn read(contents: &'a [&'a str], targets: &[Target]) -> Self {
        let document = fs::read_to_string(PATH).unwrap();
        let head = table(&document, TARGETS).lines().next().unwrap_or_default();
        let versions: Vec<_> = cells(head).map(str::to_owned).collect();
        let versions = match &versions[..] {
            [_, versions @ ..] => versions.to_vec().try_into().unwrap(),
            [] => Default::default(),
        };
        let targets = targets.iter().map(|target| target.name).collect();
        let mut page = Self { document, versions, contents, targets, cells: BTreeMap::new() };
        page.read_cells();
        page
    }

    fn read_cells(&mut self) {
        let document = self.document.clone();
        for row in rows(&document, TARGETS) {
            for name in row[0].split(NEXT) {
                let Some(target) = self.targets.iter().position(|it| *it == name) else { continue };
                for (series, word) in row[1..].iter().enumerate().filter(|(_, word)| !word.is_empty()) {
                    self.cells.entry((0, target)).or_default()[series] = Some(Outcome::parse(word));
                }
            }
        }
        for row in rows(&document, CONTENTS) {
            for name in row[0].split(NEXT) {
                let Some(content) = self.contents.iter().position(|it| *it == name) else { continue };
                for (series, text) in row[1..].iter().enumerate().filter(|(_, text)| !text.is_empty()) {
                    self.read_cell(content, series, text);
                }
            }
        }
    }

    fn read_cell(&mut self, content: usize, series: usize, text: &str) {
        for target in 0..self.targets.len() {
            let said = self.said(text, target, series);
            self.cells.entry((content, target)).or_default()[series] = said;
        }
    }

    /// The outcome that the document gives in a cell of the second table for a target.
    fn said(&self, text: &str, target: usize, series: usize) -> Option<Outcome> {
        let plain = self.cells.get(&(0, target)).and_then(|outcomes| outcomes[series]);
        if text == SAME {
            return plain;
        }
        if !text.contains(": ") {
            return Some(Outcome::parse(text));
        }
        let clauses = text.split("; ").map(|clause| clause.split_once(": ").unwrap());
        let named = |names: &str| {
            names.replace(STREAMS.1, STREAMS.0).split(", ").any(|name| name == self.targets[target])
        };
        clauses.filter(|(_, names)| named(names)).map(|(word, _)| Outcome::parse(word)).next().or(plain)
    }

    /// Records a measured outcome. Returns the difference to the document, if there is one.
    pub(super) fn compare(
        &mut self,
        Series(series): Series,
        (content, target): (usize, usize),
        found: Outcome,
    ) -> Option<String> {
        let said = self.cells.entry((content, target)).or_default()[series].replace(found);
        let said_otherwise = said != Some(found);
        let name = || format!("{} to a target of the kind {}", self.contents[content], self.targets[target]);
        said_otherwise.then(|| match said {
            Some(said) => format!("{}: {found}, and not {said}", name()),
            None => format!("{}: {found}, which is not in the document", name()),
        })
    }

    /// Writes all outcomes, and the measured version.
    pub(super) fn write(&mut self, version: &str) {
        self.versions[Series::of(version).0] = version.to_owned();
        fs::write(PATH, self.render()).unwrap();
    }

    /// Checks that the document contains exactly these rows, in the generated form.
    pub(super) fn is_as_it_is_written(&self) {
        assert_eq!(
            self.document,
            self.render(),
            "docs/reference/message-outcomes.md differs from the generated rows"
        );
    }

    fn render(&self) -> String {
        let targets = self.targets.iter().enumerate().map(|(target, name)| {
            let words = self.cells.get(&(0, target)).copied().unwrap_or_default();
            (*name, words.map(|outcome| outcome.map(|outcome| outcome.to_string()).unwrap_or_default()))
        });
        let contents = self.contents.iter().enumerate().skip(1);
        let contents =
            contents.map(|(content, name)| (*name, [0, 1, 2].map(|series| self.text(content, series))));
        let document = replaced(&self.document, TARGETS, &self.table_of("bound to dispatch", targets));
        replaced(&document, CONTENTS, &self.table_of("content", contents))
    }

    fn table_of<'b>(&self, title: &str, rows: impl Iterator<Item = (&'b str, [String; 3])>) -> String {
        let mut grouped: Vec<([String; 3], Vec<&str>)> = Vec::new();
        for (name, cells) in rows {
            match grouped.iter_mut().find(|(known, _)| *known == cells) {
                Some((_, names)) => names.push(name),
                None => grouped.push((cells, vec![name])),
            }
        }
        let mut table = format!("| {title} | {} |\n|---|---|---|---|\n", self.versions.join(" | "));
        for (cells, names) in grouped {
            table += &format!("| {} | {} |\n", names.join(NEXT), cells.join(" | "));
        }
        table
    }

    fn text(&self, content: usize, series: usize) -> String {
        let of = |content, target| self.cells.get(&(content, target)).and_then(|outcomes| outcomes[series]);
        let found: Vec<_> = (0..self.targets.len())
            .filter_map(|target| Some((target, of(content, target)?, of(0, target)?)))
            .collect();
        let Some((_, first, _)) = found.first() else { return String::new() };
        if found.iter().all(|(_, found, plain)| found == plain) {
            return SAME.into();
        }
        if found.iter().all(|(_, found, _)| found == first) {
            return first.to_string();
        }
        let mut clauses: BTreeMap<Outcome, Vec<&str>> = BTreeMap::new();
        for (target, outcome, plain) in found {
            if outcome != plain {
                clauses.entry(outcome).or_default().push(self.targets[target]);
            }
        }
        let clause = |(outcome, names): (Outcome, Vec<&str>)| {
            format!("{outcome}: {}", names.join(", ").replace(STREAMS.0, STREAMS.1))
        };
        clauses.into_iter().map(clause).collect::<Vec<_>>().join("; ")
    }
}

/// The text between a mark and the end of its table.
fn table<'a>(document: &'a str, mark: &str) -> &'a str {
    let (_, rest) = document.split_once(mark).unwrap_or_else(|| panic!("{mark} is missing"));
    rest.split_once("\n<!-- end -->").unwrap_or_else(|| panic!("{mark} has no end")).0.trim_start()
}

fn replaced(document: &str, mark: &str, rows: &str) -> String {
    let (before, rest) = document.split_once(mark).unwrap();
    let (_, after) = rest.split_once("\n<!-- end -->").unwrap();
    format!("{before}{mark}\n{}\n<!-- end -->{after}", rows.trim_end())
}

fn cells(row: &str) -> impl Iterator<Item = &str> {
    row.trim_matches('|').split('|').map(str::trim)
}

fn rows<'a>(document: &'a str, mark: &str) -> Vec<Vec<&'a str>> {
    table(document, mark).lines().skip(2).map(|row| cells(row).collect()).collect()
}
