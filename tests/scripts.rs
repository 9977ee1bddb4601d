//! `scripts/release` from start to end, with stand-ins for the slow steps, and the documentation of packages.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// A repository with everything the script needs. Its slow steps only record that they ran.
fn repository(at: &Path) {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(at.join("scripts/lib")).unwrap();
    fs::create_dir(at.join("bin")).unwrap();
    for file in ["Cargo.toml", "CHANGELOG.md", "README.md", "scripts/release", "scripts/lib/setup.sh"] {
        fs::copy(ours.join(file), at.join(file)).unwrap();
    }
    fs::write(at.join(".gitignore"), "target").unwrap();
    let packages = "mkdir -p target/package && touch target/package/d.{tar.gz,deb,rpm,cdx.json}";
    for (name, more) in [
        ("scripts/test", ""),
        ("scripts/minimal-versions", ""),
        ("scripts/test-package", packages),
        ("scripts/package", ""),
        ("bin/cargo", ""),
    ] {
        let name = at.join(name);
        let stand_in = format!("#!/bin/bash\necho \"${{0##*/}} $*\" >>../ran\n{more}\n");
        fs::write(&name, stand_in).unwrap();
        fs::set_permissions(&name, fs::Permissions::from_mode(0o755)).unwrap();
    }
    git(at, &["init", "--quiet"]);
    git(at, &["add", "--all"]);
    git(at, &["commit", "--quiet", "--message", "stand-ins"]);
}

fn git(at: &Path, arguments: &[&str]) {
    let who = ["-c", "user.name=test", "-c", "user.email=test@example"];
    assert!(Command::new("git").current_dir(at).args(who).args(arguments).status().unwrap().success());
}

/// The exit code and the whole output.
fn release(at: &Path, tag: &str) -> (Option<i32>, String) {
    let path = format!("{}:{}", at.join("bin").display(), std::env::var("PATH").unwrap());
    let output = Command::new(at.join("scripts/release")).arg(tag).env("PATH", path).output().unwrap();
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(printed).unwrap())
}

#[test]
fn a_release_is_made_up_to_publishing() {
    let directory = tempfile::tempdir().unwrap();
    let at = &directory.path().join("repository");
    repository(at);
    let tag = concat!("v", env!("CARGO_PKG_VERSION"));
    for (tag, reason) in [("", "name a tag"), (tag, "there is no tag"), ("v9.9.9", "there is no tag")] {
        let (code, printed) = release(at, tag);
        assert!(code == Some(2) && printed.contains(reason), "{tag}: {code:?} {printed}");
    }
    git(at, &["tag", "v9.9.9"]);
    assert!(release(at, "v9.9.9").1.contains("Cargo.toml says"));
    git(at, &["tag", tag]);
    fs::write(at.join("README.md"), "changed").unwrap();
    assert!(release(at, tag).1.contains("not committed"));
    git(at, &["checkout", "--quiet", "README.md"]);
    assert!(!directory.path().join("ran").exists());

    let (code, printed) = release(at, tag);
    assert_eq!(code, Some(0), "{printed}");
    let ran = fs::read_to_string(directory.path().join("ran")).unwrap();
    let ran: Vec<_> = ran.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ran[..4], ["test", "minimal-versions", "cargo", "test-package"]);
    let made = |name: &str| fs::read_to_string(at.join("target/package").join(name)).unwrap();
    assert_eq!(made("SHA256SUMS").lines().count(), 4);
    assert!(!made("NOTES.md").contains("## [") && made("NOTES.md").trim().lines().count() > 3);
    for step in ["git push origin", "docker build", "cargo publish --workspace"] {
        assert!(printed.contains(step), "{printed}");
    }
}

#[test]
fn the_pages_of_a_package_link_to_what_it_contains() {
    let directory = tempfile::tempdir().unwrap();
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/lib");
    let output = Command::new(lib.join("documentation.sh")).arg(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(directory.path().join("docs/images/hops.svg").exists());
    // A missing file would be noticed.
    fs::remove_file(directory.path().join("SECURITY.md")).unwrap();
    let output = Command::new("python3").arg(lib.join("links.py")).arg(directory.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("README.md: SECURITY.md"), "{said}");
}
