//! Nodes of pages and of the threads that use them.

use membound_run::{PageNode, ProcessId, RunData, SiteKind};
use membound_types::{InsightKind, Outcome};

use crate::synthetic::{From, Like, Synthetic, Target};
use crate::{near, views};

/// Document 001's triad: two threads on two nodes, each with half of an array whose pages lie
/// where `node` says.
fn triad(node: impl Fn(u64) -> u16) -> RunData {
    let mut program = Synthetic::new(10.0, 2);
    program.run.meta.nodes = 2;
    program.run.meta.cpu_nodes = vec![0, 1];
    let threads = [program.thread("main"), program.thread("second")];
    let array = program.global("a", 1 << 20);
    let fill = program.site(("main", "triad.c", 6), SiteKind::Store, 8);
    let triad = program.site(("doTriad", "triad.c", 18), SiteKind::Load, 8);
    let whole = Like::chase(From::L3, std::slice::from_ref(&array));
    program.access(threads[0], 0, fill, 0.0..0.5, &whole);
    for (which, thread) in threads.into_iter().enumerate() {
        let half = Target {
            address: array.address + (which as u64) * (512 << 10),
            bytes: 512 << 10,
            ..array.clone()
        };
        let like = Like::chase(From::Dram, &[half]);
        program.access(thread, which as u16, triad, 0.5..10.0, &like);
    }
    for page in 0..256 {
        program.run.pages.push(PageNode {
            process: ProcessId(0),
            address: array.address + page * 4096,
            t_ns: 600_000_000,
            node: node(page),
        });
    }
    program.finish()
}

#[test]
fn pages_that_one_thread_filled_are_remote_to_the_other() {
    let profile = views(&triad(|_| 0)).profile;
    let Outcome::Known(numa) = &profile.numa else {
        panic!("{:?}", profile.numa);
    };
    assert_eq!(numa.nodes, 2);
    near(numa.local_fraction, 0.5, 0.2, "local");
    assert!(numa.matrix[1][0] > 0.0 && numa.matrix[1][1] == 0.0 && numa.matrix[0][1] == 0.0);
    let all: f64 = numa.matrix.iter().flatten().sum();
    near(all, 1.0, 1e-9, "shares of all accesses");
    let [low, high] = numa.local_interval.expect("it was found");
    assert!(
        low < numa.local_fraction && numa.local_fraction < high && high - low < 0.5,
        "{low} to {high}"
    );
    let row = &numa.objects[0];
    assert_eq!((row.name.as_str(), row.node), ("a", Some(0)));
    near(row.remote_share, 1.0, 1e-9, "remote share");
    assert!(
        row.advice
            .contains("written first by thread 4000 at triad.c:6"),
        "{}",
        row.advice
    );
    assert!(row.advice.contains("first written"), "{}", row.advice);
    assert_eq!(numa.lines[0].name, "triad.c:18");
    let object = profile.objects.iter().find(|row| row.name == "a").unwrap();
    near(
        object.node_local_fraction.unwrap(),
        numa.local_fraction,
        1e-9,
        "object",
    );
    let insight = profile
        .findings
        .iter()
        .find(|insight| insight.kind == InsightKind::Placement)
        .unwrap();
    assert!(
        insight.text.contains("to a go to another node"),
        "{}",
        insight.text
    );
}

#[test]
fn pages_that_each_thread_filled_itself_are_local() {
    let mut run = triad(|page| u16::from(page >= 128));
    run.accesses.retain(|access| access.t_ns >= 500_000_000);
    let profile = views(&run).profile;
    let numa = profile.numa.known().unwrap();
    near(numa.local_fraction, 1.0, 1e-9, "local");
    assert!(numa.objects.iter().all(|row| row.advice.is_empty()));
    assert!(
        profile
            .findings
            .iter()
            .all(|insight| insight.kind != InsightKind::Placement)
    );
}

#[test]
fn timer_samples_stand_in_where_no_access_was_recorded() {
    let mut run = triad(|_| 0);
    run.accesses.clear();
    let objects = run.objects.clone();
    let array = objects.iter().find(|object| object.name == "a").unwrap();
    for (index, sample) in run.samples.iter_mut().enumerate() {
        let second = u64::from(sample.thread.0 == 1);
        sample.address = Some(array.address + second * (512 << 10) + index as u64 % 4096 * 64);
        sample.exact = true;
        sample.object = Some(membound_run::ObjectId(
            objects.iter().position(|it| it.name == "a").unwrap() as u32,
        ));
    }
    let profile = views(&run).profile;
    let numa = profile.numa.known().unwrap();
    near(numa.local_fraction, 0.5, 0.2, "local");
    assert_eq!(numa.objects[0].node, Some(0));
    assert!(
        numa.objects[0].advice.contains("allocated by") || numa.objects[0].advice.contains("lie"),
        "{}",
        numa.objects[0].advice
    );
    // Inexact addresses say nothing about the page of the access.
    for sample in &mut run.samples {
        sample.exact = false;
    }
    assert!(views(&run).profile.numa.known().is_none());
}

#[test]
fn the_node_of_an_access_outweighs_the_node_of_its_page() {
    let mut run = triad(|_| 0);
    for access in &mut run.accesses {
        access.node = access.cpu;
    }
    let profile = views(&run).profile;
    near(
        profile.numa.known().unwrap().local_fraction,
        1.0,
        1e-9,
        "local",
    );
}

#[test]
fn a_machine_with_one_node_is_reported() {
    let mut run = triad(|_| 0);
    run.meta.nodes = 1;
    let profile = views(&run).profile;
    assert_eq!(
        profile.numa.why_missing().unwrap().reason,
        "the machine has one node"
    );
}

#[test]
fn unqueried_pages_are_reported() {
    let mut run = triad(|_| 0);
    run.pages.clear();
    let profile = views(&run).profile;
    assert!(profile.numa.why_missing().unwrap().remedy.is_some());
}
