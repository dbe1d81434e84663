//! `measure --cpu A,B`: several processors in one run.

use crate::command::Membound;

#[test]
fn several_cpus_stand_side_by_side_and_can_be_compared_again() {
    let cpus = membound_platform::affinity::allowed().unwrap();
    let [first, second, ..] = cpus.as_slice() else {
        membound_testkit::skipped("there is one CPU");
        return;
    };
    let membound = Membound::new();
    let line = format!(
        "measure latency --cpu {first},{second} --quick --sizes 16K,64M --page 4k --json cpus.json"
    );
    let finished = membound.run(&line);
    assert_eq!(finished.code, Some(0), "{finished:?}");
    for part in [
        format!("cpu={first}"),
        format!("cpu={second}"),
        "latency".to_owned(),
    ] {
        assert!(finished.stdout.contains(&part), "{part}: {finished:?}");
    }
    let text = std::fs::read_to_string(membound.home.path().join("cpus.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["kind"], "processors");
    for (index, cpu) in [first, second].into_iter().enumerate() {
        let profile = &json["profiles"][index];
        assert_eq!(profile["conditions"]["labels"]["cpu"], cpu.to_string());
        let points = profile["latency"]["points"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        for point in points {
            assert_eq!(point["cpu"], cpu.0, "{point}");
        }
    }
    // The single file holds profiles that can be compared.
    let compared = membound.run("compare cpus.json --all");
    assert_eq!(compared.code, Some(0), "{compared:?}");
    assert!(
        compared
            .stdout
            .contains(&format!("cpu={second} against cpu={first}"))
    );
}

#[test]
fn what_several_cpus_cannot_have_is_one_line() {
    let membound = Membound::new();
    for (code, line, part) in [
        (2, "measure latency --cpu 0,0 --sizes 16K", "named twice"),
        (2, "measure latency --cpu 0,x --sizes 16K", "`x`"),
        (
            1,
            "measure latency --cpu 0,100000 --sizes 16K",
            "cpu 100000 does not exist",
        ),
        (
            2,
            "measure latency --cpu 0,1 --sizes 16K --format csv",
            "one CPU",
        ),
    ] {
        membound.run(line).complains(code, &[part]);
    }
}
