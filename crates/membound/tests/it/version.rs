//! The build that a command and its documents report.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::Membound;

#[path = "../../build/commit.rs"]
mod commit;

use commit::Commit;

fn version() -> String {
    Membound::new().run("--version").printed()
}

#[test]
fn the_short_version_is_a_number_and_the_long_one_names_the_build() {
    let short = Membound::new().run("-V");
    assert_eq!(
        short.stdout,
        concat!("membound ", env!("CARGO_PKG_VERSION"), "\n")
    );
    let long = version();
    let build = long.strip_prefix(short.stdout.trim_end());
    let build = build.and_then(|rest| rest.strip_prefix(" ("));
    let build = build.and_then(|rest| rest.strip_suffix(")\n"));
    let (commit, profile) = build.and_then(|it| it.rsplit_once(", ")).expect(&long);
    let expected = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    assert_eq!(profile, expected);
    match Commit::of(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        // Tracked files other than sources may have changed since the build.
        Some(found) => assert!(commit.starts_with(&found.hash), "{commit}: {found}"),
        None => assert_eq!(commit, "unknown commit"),
    }
}

#[test]
fn documents_name_the_build_that_wrote_them() {
    let membound = Membound::new();
    let long = version();
    let doctor = membound.run("doctor --json").json();
    let version = doctor["membound_version"].as_str();
    assert_eq!(version.map(|it| format!("membound {it}\n")), Some(long));
}

/// Runs git in `place` without the user's configuration, with a fixed author and date.
fn git(place: &Path, words: &[&str]) {
    let mut command = Command::new("git");
    command
        .args(["-c", "user.name=A", "-c", "user.email=a@example.org"])
        .args(words)
        .current_dir(place)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_COMMITTER_DATE", "2021-03-04T05:06:07Z");
    let output = command.output().expect("git starts");
    assert!(output.status.success(), "{words:?}: {output:?}");
}

#[test]
fn the_version_has_commit_date_and_dirty_mark() {
    if !membound_testkit::is_there("git") {
        return membound_testkit::skipped("no git");
    }
    let place = tempfile::tempdir().expect("there is room for a directory");
    let source = place.path().join("source");
    fs::create_dir(&source).expect("the directory is ours");
    let file = source.join("main.rs");
    fs::write(&file, "one").expect("the directory is ours");
    assert_eq!(Commit::of(&source), None, "there is no repository");
    git(place.path(), &["init", "--quiet"]);
    assert_eq!(Commit::of(&source), None, "there is no commit");
    git(place.path(), &["add", "source"]);
    git(place.path(), &["commit", "--quiet", "--message=first"]);
    let clean = Commit::of(&source).expect("there is a commit");
    assert_eq!(clean.hash.len(), 9, "{clean}");
    assert_eq!(clean.to_string(), format!("{} of 2021-03-04", clean.hash));
    fs::write(&file, "two").expect("the directory is ours");
    let dirty = Commit::of(&source).expect("there is a commit");
    assert_eq!(
        dirty.to_string(),
        format!("{}-dirty of 2021-03-04", clean.hash)
    );
    let unpacked = place.path().join("unpacked");
    fs::create_dir(&unpacked).expect("the directory is ours");
    assert_eq!(Commit::of(&unpacked), None, "not tracked there");
}

#[test]
fn a_worktree_is_watched_by_files_of_its_own() {
    if !membound_testkit::is_there("git") {
        return membound_testkit::skipped("no git");
    }
    let place = tempfile::tempdir().expect("there is room for a directory");
    let [clone, tree] = ["clone", "tree"].map(|name| place.path().join(name));
    fs::create_dir(&clone).expect("the directory is ours");
    assert!(commit::watched(&clone).is_empty(), "no repository");
    git(&clone, &["init", "--quiet", "--initial-branch=trunk"]);
    fs::write(clone.join("file"), "").expect("the directory is ours");
    git(&clone, &["add", "file"]);
    git(&clone, &["commit", "--quiet", "--message=first"]);
    git(
        &clone,
        &["worktree", "add", "--quiet", "-b", "twig", "../tree"],
    );
    for (directory, expected) in [
        (&clone, ["clone/.git/HEAD", "clone/.git/refs/heads/trunk"]),
        (
            &tree,
            [
                "clone/.git/worktrees/tree/HEAD",
                "clone/.git/refs/heads/twig",
            ],
        ),
    ] {
        let watched = commit::watched(directory);
        let real = |path: &Path| fs::canonicalize(path).expect("what is watched exists");
        let watched: Vec<_> = watched.iter().map(|path| real(path)).collect();
        for name in expected {
            let expected = real(&place.path().join(name));
            assert!(watched.contains(&expected), "{name}: {watched:?}");
        }
    }
}
