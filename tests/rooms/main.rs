//! The map of the rooms in CONTRIBUTING.md is correct: every room is on it, and no room uses a
//! later one.
//!
//! Between crates, the compiler checks this; between the modules of a crate, only this test does.

mod limits;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// A row of the map.
struct Room {
    /// The folder or file.
    path: String,
    /// The crate that contains it, by its name in code.
    of: String,
    /// Its name in the paths of code; empty for the crate itself.
    module: String,
}

fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rooms() -> Vec<Room> {
    let document = fs::read_to_string(top().join("CONTRIBUTING.md")).unwrap();
    let paths = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let rooms: Vec<_> = paths
        .filter(|path| ["src", "crates/", "tools/"].iter().any(|start| path.starts_with(start)))
        .collect();
    let room = |path: &&str| {
        let (before, module) = path.split_once("src").expect("a folder of sources");
        let of = before.trim_end_matches('/').trim_start_matches("crates/").trim_start_matches("tools/");
        Room {
            path: (*path).to_owned(),
            of: if of.is_empty() { "delayline".into() } else { format!("delayline_{of}") },
            module: module.trim_start_matches('/').trim_end_matches(".rs").into(),
        }
    };
    rooms.iter().map(room).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            false => {}
        }
    }
}

/// The code of a file, without comments and without its unit tests, which may use everything.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The names directly after `root::`, also in braces.
fn named(code: &str, root: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices(&format!("{root}::")) {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
            continue;
        }
        let rest = &code[at + root.len() + 2..];
        let word = |text: &str| {
            text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
        };
        let Some(inside) = rest.strip_prefix('{') else {
            names.insert(word(rest));
            continue;
        };
        // The first word of each part outside inner braces.
        let (mut depth, mut part) = (0, String::new());
        for c in inside.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    names.insert(word(&part));
                    part.clear();
                }
                _ if depth == 0 => part.push(c),
                _ => {}
            }
        }
        names.insert(word(&part));
    }
    names.remove("");
    names
}

/// The place on the map of the innermost room that contains a file.
fn place(rooms: &[Room], file: &str) -> Option<usize> {
    let holds = |room: &Room| file == room.path || file.starts_with(&format!("{}/", room.path));
    (0..rooms.len()).filter(|&place| holds(&rooms[place])).max_by_key(|&place| rooms[place].path.len())
}

/// The place of the room that a name refers to. A name that is not on the map refers to the crate
/// itself.
fn meant(rooms: &[Room], of: &str, name: &str) -> Option<usize> {
    let known = |module: &str| rooms.iter().position(|room| room.of == of && room.module == module);
    known(name).or_else(|| known(&name.to_lowercase())).or_else(|| known(""))
}

#[test]
fn no_room_uses_one_that_comes_after_it() {
    let rooms = rooms();
    let mut files = Vec::new();
    sources(&top().join("src"), &mut files);
    sources(&top().join("crates"), &mut files);
    sources(&top().join("tools/bench/src"), &mut files);
    assert!(files.len() > 200, "only {} files were found", files.len());
    let (mut wrong, mut looked) = (Vec::new(), 0);
    for file in &files {
        let relative = file.strip_prefix(top()).unwrap().to_str().unwrap();
        let Some(here) = place(&rooms, relative) else {
            wrong.push(format!("{relative} is in no room of the map"));
            continue;
        };
        let text = code(&fs::read_to_string(file).unwrap());
        for of in rooms.iter().map(|room| room.of.as_str()).collect::<BTreeSet<_>>() {
            let own = of == rooms[here].of;
            // Files of the crate itself connect its rooms, so they may use all of them.
            if own && rooms[here].module.is_empty() {
                continue;
            }
            for name in named(&text, if own { "crate" } else { of }) {
                looked += 1;
                let there = meant(&rooms, of, &name).expect("a crate of the map");
                // The crate itself comes before its rooms on the map, but its rooms may not use it.
                if there > here || own && rooms[there].module.is_empty() {
                    wrong.push(format!("{relative} uses `{name}` of {}", rooms[there].path));
                }
            }
        }
    }
    assert!(looked > 300, "only {looked} uses were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_folder_is_on_the_map() {
    let rooms = rooms();
    let mut crates: Vec<_> =
        fs::read_dir(top().join("crates")).unwrap().map(|entry| entry.unwrap().path().join("src")).collect();
    crates.push(top().join("src"));
    for source in crates {
        let relative = source.strip_prefix(top()).unwrap().to_str().unwrap();
        assert!(rooms.iter().any(|room| room.path == relative), "{relative} is not on the map");
    }
    for room in &rooms {
        assert!(top().join(&room.path).exists(), "{} is on the map but does not exist", room.path);
    }
}

#[test]
fn names_are_found_in_braces_and_in_paths() {
    let text = "use crate::{a::{b, c}, D, e::f};\nfn g() { crate::h::i(); other::crate_::j(); }";
    assert_eq!(named(text, "crate").into_iter().collect::<Vec<_>>(), ["D", "a", "e", "h"]);
}
