//! Builds the image of `packaging/Containerfile` and runs it, without root: by buildah, which needs
//! no daemon, in a user namespace whose root is an ordinary user outside.

use std::fs::{read_to_string, write};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};

use super::made::Made;
use super::stage::{self, copy};
use crate::needs::install_packages;
use crate::run::{note, on_path, program, root, say, succeed};

/// Script that builds and runs the image in the current directory.
const SCRIPT: &str = include_str!("image.sh");
/// Maximum size of the unpacked image, in bytes.
const MAX_BYTES: u64 = 30_000_000;
/// The user that is root in the namespace, and the first of [`USERS`].
const USER: &str = "100000";
const USERS: &str = "65536";

/// Builds the image of the tarball, and tries it.
pub(super) fn check(made: &Made) -> Result<()> {
    if let Some(reason) = missing() {
        say(format_args!("skipped: the image: {reason}"));
        return Ok(());
    }
    note(format_args!("── the image, without root"));
    // A directory of its own, because its owner will be an ordinary user.
    let place = tempfile::tempdir().context("there is no room for a directory")?;
    let place = place.path();
    let tarball = made
        .tarball
        .file_name()
        .context("the tarball has no name")?;
    copy(&made.tarball, &place.join(tarball))?;
    let recipe = root().join("packaging/Containerfile");
    copy(&recipe, &place.join("Containerfile"))?;
    stage::write(&place.join("image.sh"), SCRIPT)?;
    succeed(program("chown").args(["--recursive", USER]).arg(place))?;
    in_namespace("sh image.sh", place)?;
    let bytes = read_to_string(place.join("size_bytes"))?;
    let bytes: u64 = bytes.trim().parse().context("the image has no size")?;
    let kilobytes = bytes.div_ceil(1000);
    say(format_args!("{kilobytes:>7} kB  the image, unpacked"));
    ensure!(
        bytes < MAX_BYTES,
        "the image has {bytes} bytes: {MAX_BYTES} or more"
    );
    Ok(())
}

/// Why no image can be built here.
fn missing() -> Option<String> {
    if on_path("buildah").is_none()
        && let Err(error) = install_packages(&["buildah"])
    {
        return Some(format!("{error:#}"));
    }
    let namespace = succeed(program("unshare").args(["--user", "--keep-caps", "true"]));
    namespace
        .err()
        .map(|error| format!("no user namespace: {error:#}"))
}

/// Runs a command of sh in `place`, as root of a user namespace. The kernel lets the root outside
/// define which users the namespace has: neither /etc/subuid nor a user of that number is needed.
fn in_namespace(command: &str, place: &Path) -> Result<()> {
    let inside = format!(
        "echo ready; read -r go; exec setpriv --reuid=0 --regid=0 --clear-groups {command}"
    );
    let mut unshare = program("unshare");
    unshare
        .args(["--user", "--keep-caps", "sh", "-c", &inside])
        .current_dir(place);
    unshare.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = unshare.spawn().context("cannot start unshare")?;
    let mut output = BufReader::new(child.stdout.take().context("unshare has no output")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    for map in ["uid_map", "gid_map"] {
        let path = format!("/proc/{}/{map}", child.id());
        write(&path, format!("0 {USER} {USERS}"))
            .with_context(|| format!("cannot write {path}"))?;
    }
    let mut input = child.stdin.take().context("unshare has no input")?;
    input.write_all(b"go\n")?;
    drop(input);
    for line in output.lines() {
        say(line?);
    }
    let status = child.wait()?;
    ensure!(
        status.success(),
        "`{command}` failed in a user namespace: {status}"
    );
    Ok(())
}
