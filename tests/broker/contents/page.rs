//! docs/what-a-message-can-do.md: its two tables, read and written.

use std::{collections::BTreeMap, fmt, fs};

use super::targets::Target;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/what-a-message-can-do.md");

/// The rows that a table consists of.
const TARGETS: &str = "<!-- targets -->";
const CONTENTS: &str = "<!-- contents -->";

/// The text of a cell if each target has the same outcome as with a plain message.
const SAME: &str = "same";

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// It is at the end of its way.
    Delivered,
    /// It is in the unroutable queue.
    Kept,
    /// The broker did not take it from its publisher.
    Refused,
    /// It keeps a place of its level.
    Blocks,
    /// No level of the node hands on anything.
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

/// The document, and the outcomes it lists, by the numbers of content and target.
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
            let Some(target) = self.targets.iter().position(|name| *name == row[0]) else { continue };
            for (series, word) in row[1..].iter().enumerate().filter(|(_, word)| !word.is_empty()) {
                self.cells.entry((0, target)).or_default()[series] = Some(Outcome::parse(word));
            }
        }
        for row in rows(&document, CONTENTS) {
            let Some(content) = self.contents.iter().position(|name| *name == row[0]) else { continue };
            for (series, text) in row[1..].iter().enumerate().filter(|(_, text)| !text.is_empty()) {
                for target in 0..self.targets.len() {
                    let said = self.said(text, target, series);
                    self.cells.entry((content, target)).or_default()[series] = said;
                }
            }
        }
    }

    /// The outcome that a cell of the second table lists for a target.
    fn said(&self, text: &str, target: usize, series: usize) -> Option<Outcome> {
        let plain = self.cells.get(&(0, target)).and_then(|outcomes| outcomes[series]);
        if text == SAME {
            return plain;
        }
        if !text.contains(": ") {
            return Some(Outcome::parse(text));
        }
        let clauses = text.split("; ").map(|clause| clause.split_once(": ").unwrap());
        let named = |names: &str| names.split(", ").any(|name| name == self.targets[target]);
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

    /// Writes all outcomes, and the version that was measured.
    pub(super) fn write(&mut self, version: &str) {
        self.versions[Series::of(version).0] = version.to_owned();
        fs::write(PATH, self.render()).unwrap();
    }

    /// Checks that the document has exactly these rows, in the form in which they are written.
    pub(super) fn is_as_it_is_written(&self) {
        assert_eq!(self.document, self.render(), "docs/what-a-message-can-do.md has other rows");
    }

    fn render(&self) -> String {
        let head = |title: &str| {
            let versions = self.versions.join(" | ");
            format!("| {title} | {versions} |\n|---|---|---|---|\n")
        };
        let mut targets = head("bound to dispatch");
        for (target, name) in self.targets.iter().enumerate() {
            let words = self.cells.get(&(0, target)).copied().unwrap_or_default();
            let words = words.map(|outcome| outcome.map(|outcome| outcome.to_string()).unwrap_or_default());
            targets += &format!("| {name} | {} |\n", words.join(" | "));
        }
        let mut contents = head("content");
        for (content, name) in self.contents.iter().enumerate().skip(1) {
            let texts = [0, 1, 2].map(|series| self.text(content, series));
            contents += &format!("| {name} | {} |\n", texts.join(" | "));
        }
        replaced(&replaced(&self.document, TARGETS, &targets), CONTENTS, &contents)
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
        let clause = |(outcome, names): (Outcome, Vec<&str>)| format!("{outcome}: {}", names.join(", "));
        clauses.into_iter().map(clause).collect::<Vec<_>>().join("; ")
    }
}

/// The text between a mark and its end.
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
