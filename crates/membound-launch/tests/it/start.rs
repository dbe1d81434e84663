//! How programs are started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use membound_launch::{Change, Program, RanProgram, Session, ShortLived};
use membound_rewrite::patch::{self, Body};

use crate::fixture::{Fixture, busy};

/// Runs a shell script without and with a session, in an environment of its own; returns both outputs.
fn both(script: &str, environment: &[&str]) -> Option<[String; 2]> {
    let fixture = Fixture::build("walk.c")?;
    let _busy = busy();
    let out = fixture.home.path().join("out");
    let script = format!("exec > {}; {script}", out.display());
    let mut plain = std::process::Command::new("/usr/bin/env");
    plain.arg("-i").args(environment);
    let status = plain.args(["/bin/sh", "-c", &script]).status();
    assert!(status.is_ok_and(|status| status.success()));
    let written = || fs::read_to_string(&out).expect("the shell made it");
    let expected = written();
    let program = Program {
        name: "/bin/sh".into(),
        arguments: vec!["-c".into(), script.into()],
        search: None,
        environment: environment.iter().map(Into::into).collect(),
    };
    let options = fixture.options(patch::Options::new(Body::Displace));
    let session = Session::start(&program, options).expect("there is a shell");
    crate::fixture::ends_well(&session);
    drop(session.finish());
    Some([expected, written()])
}

#[test]
fn the_environment_keeps_its_order() {
    for environment in [
        &["Z=1", "B=2", "A=3", "PATH=/usr/bin:/bin"][..],
        &["Z=1", "LD_PRELOAD=libm.so.6", "A=3", "PATH=/usr/bin:/bin"],
    ] {
        let Some([plain, patched]) = both("exec env", environment) else {
            return;
        };
        assert!(plain.contains("A=3"), "{plain}");
        assert_eq!(plain, patched);
    }
}

#[test]
fn signals_are_inherited_as_they_were() {
    let script = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    if let Some([plain, patched]) = both(script, &["PATH=/usr/bin:/bin"]) {
        assert_eq!(plain, patched);
    }
}

#[test]
fn of_many_short_processes_some_are_patched() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let script = "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i + 1)); done";
    let patched = |short_lived| {
        let program = Program {
            name: "/bin/sh".into(),
            arguments: vec!["-c".into(), script.into()],
            search: None,
            environment: membound_launch::environment(),
        };
        let mut options = fixture.options(patch::Options::new(Body::Displace));
        options.short_lived = short_lived;
        let session = Session::start(&program, options).expect("there is a shell");
        crate::fixture::ends_well(&session);
        let programs = session.finish().programs;
        let is_short = |it: &&RanProgram| it.path.ends_with("true");
        let short: Vec<RanProgram> = programs.iter().filter(is_short).cloned().collect();
        assert_eq!(short.len(), 200);
        let reasons = short.into_iter().filter_map(|program| program.unpatched);
        let reasons: Vec<String> = reasons.collect();
        assert!(
            reasons
                .iter()
                .all(|it| it.contains("one process of it in 16")),
            "{reasons:?}"
        );
        200 - reasons.len()
    };
    assert_eq!(patched(ShortLived::All), 200);
    let some = patched(ShortLived::Some {
        below: Duration::from_mins(1),
    });
    assert!((8..50).contains(&some), "{some}");
}

#[test]
fn a_script_without_magic_is_run_by_the_shell() {
    let Some(fixture) = Fixture::build("walk.c") else {
        return;
    };
    let _busy = busy();
    let script = fixture.home.path().join("script");
    fs::write(&script, "exit $(($1 + 1))\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let program = Program {
        name: script.into_os_string(),
        arguments: vec!["6".into()],
        search: None,
        environment: membound_launch::environment(),
    };
    let options = fixture.options(patch::Options::new(Body::Displace));
    let session = Session::start(&program, options).unwrap();
    let Change::Ended(status) = session.wait().unwrap() else {
        panic!("it was stopped");
    };
    assert_eq!(status.code(), Some(7));
    assert_eq!(session.obstacle(), None);
    drop(session.finish());
}
