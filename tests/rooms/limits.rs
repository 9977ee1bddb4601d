//! The size limits of rooms, and the forbidden imports. Each rule has a list of its present
//! exceptions. An entry that is no longer an exception must be removed from the list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::{code, named, place, rooms, sources, top};

/// The line limits: for a file without its unit tests, for a row of the map, and for a crate.
const OF_A_FILE: usize = 400;
const OF_A_ROOM: usize = 3_000;
const OF_A_CRATE: usize = 12_000;

/// Files over the limit.
const FILES: [&str; 3] = [
    "crates/provision/src/apps/remove.rs",
    "crates/broker/src/management/client.rs",
    "crates/broker/src/management/model.rs",
];

/// Rooms over the limit.
const ROOMS: [&str; 0] = [];

/// Crates over the limit.
const CRATES: [&str; 0] = [];

/// Circles of modules, and the number of modules in each.
const CIRCLES: [(&str, usize); 0] = [];

/// By crate, how many modules import from the root of their crate, which ties them together.
const ROOTED: [(&str, usize); 0] = [];

/// A crate: its name, and its files.
struct Crate {
    name: String,
    files: Vec<File>,
}

struct File {
    /// Its path below the top of the repository.
    path: String,
    /// Its path below the crate's sources, folder by folder, without `mod`.
    module: Vec<String>,
    text: String,
}

impl File {
    fn lines(&self) -> usize {
        self.text.lines().count()
    }

    /// The room that contains it; `None` for the root of the crate.
    fn room(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }

    /// The first word of everything that it imports from its own crate.
    fn imports(&self) -> BTreeSet<String> {
        let code = code(&self.text);
        let mut imports = named(&code, "crate");
        // For a module directly below the root, `super` is the root.
        if self.module.len() == 1 {
            imports.extend(named(&code, "super"));
        }
        imports
    }
}

fn crates() -> Vec<Crate> {
    let folder = top().join("crates");
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut crates: Vec<_> = names.map(|name| (format!("crates/{name}/src"), name)).collect();
    crates.push(("src".into(), "delayline".into()));
    crates.sort();
    crates
        .into_iter()
        .map(|(source, name)| {
            let (source, mut found) = (top().join(source), Vec::new());
            sources(&source, &mut found);
            let file = |path: &std::path::PathBuf| {
                let below = path.strip_prefix(&source).unwrap().with_extension("");
                let mut module: Vec<_> = below.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                module.retain(|part| !["mod", "lib", "main"].contains(&part.as_str()));
                File {
                    path: path.strip_prefix(top()).unwrap().to_str().unwrap().to_owned(),
                    module,
                    text: fs::read_to_string(path).unwrap(),
                }
            };
            Crate { name, files: found.iter().map(file).collect() }
        })
        .collect()
}

/// Fails unless exactly the listed items are exceptions.
fn only(what: &str, mut found: Vec<String>, listed: &[&str]) {
    found.sort();
    let new: Vec<_> = found.iter().filter(|it| !listed.contains(&it.as_str())).collect();
    let gone: Vec<_> = listed.iter().filter(|it| !found.iter().any(|found| found == **it)).collect();
    assert!(new.is_empty(), "{what}: {new:?}");
    assert!(gone.is_empty(), "no longer exceptions, so remove them from the list of {what}: {gone:?}");
}

#[test]
fn files_rooms_and_crates_are_small() {
    let crates = crates();
    let files = crates.iter().flat_map(|it| &it.files);
    let own = |file: &&File| file.text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines().count();
    only("large files", files.filter(|it| own(it) > OF_A_FILE).map(|it| it.path.clone()).collect(), &FILES);
    let (map, mut rooms) = (rooms(), BTreeMap::<&str, usize>::new());
    for file in crates.iter().flat_map(|it| &it.files) {
        let room = place(&map, &file.path).map_or("none", |place| &map[place].path);
        *rooms.entry(room).or_default() += file.lines();
    }
    let large = rooms.into_iter().filter(|(_, lines)| *lines > OF_A_ROOM);
    only("large rooms", large.map(|(room, _)| room.to_owned()).collect(), &ROOMS);
    let lines = |it: &&Crate| it.files.iter().map(File::lines).sum::<usize>();
    only(
        "large crates",
        crates.iter().filter(|it| lines(it) > OF_A_CRATE).map(|it| it.name.clone()).collect(),
        &CRATES,
    );
}

/// For each room of a crate, the rooms that it uses.
fn uses(of: &Crate) -> BTreeMap<&str, BTreeSet<&str>> {
    let rooms: BTreeSet<&str> = of.files.iter().filter_map(File::room).collect();
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in &of.files {
        let Some(here) = file.room() else { continue };
        let imports = file.imports();
        let others = rooms.iter().filter(|room| **room != here && imports.contains(**room));
        uses.entry(here).or_default().extend(others);
    }
    uses
}

/// Everything that a room uses through other rooms.
fn reached<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(room) = next.pop() {
        for other in uses.get(room).into_iter().flatten() {
            if reached.insert(*other) {
                next.push(other);
            }
        }
    }
    reached
}

#[test]
fn no_room_uses_itself_by_way_of_others() {
    let mut circles = Vec::new();
    for of in crates() {
        let uses = uses(&of);
        let number = uses.keys().filter(|room| reached(&uses, room).contains(**room)).count();
        if number > 0 {
            circles.push(format!("{} {number}", of.name));
        }
    }
    let listed: Vec<_> = CIRCLES.iter().map(|(of, number)| format!("{of} {number}")).collect();
    only("circles", circles, &listed.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn no_room_imports_from_the_root_of_its_crate() {
    let mut rooted = Vec::new();
    for of in crates() {
        let rooms: BTreeSet<&str> = of.files.iter().filter_map(File::room).collect();
        let is_rooted = |file: &&File| {
            file.room().is_some() && file.imports().iter().any(|import| !rooms.contains(import.as_str()))
        };
        let number = of.files.iter().filter(is_rooted).count();
        if number > 0 {
            rooted.push(format!("{} {number}", of.name));
        }
    }
    let listed: Vec<_> = ROOTED.iter().map(|(of, number)| format!("{of} {number}")).collect();
    only("imports from the root", rooted, &listed.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn a_circle_is_found() {
    let uses = [("a", ["b"].into()), ("b", ["c"].into()), ("c", ["b"].into())].into();
    assert!(!reached(&uses, "a").contains("a"));
    assert!(reached(&uses, "b").contains("b") && reached(&uses, "c").contains("c"));
}
