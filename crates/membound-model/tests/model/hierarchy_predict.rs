//! Times predicted for windows, areas and strides that were not measured.

use std::collections::BTreeSet;

use membound_model::hierarchy::{
    FitError, FitOptions, KeepPoints, Known, LeftOut, fit, fit_measured, predict, predict_stride,
};
use membound_types::{FitData, SizeMode, TlbTerm};

use crate::hierarchy_cases::{chain, clean, close, fit_with, loads};
use crate::seidl_data::{
    GIB, KIB, MIB, NONE, Random, SOME, WINDOWS, areas, noisy, origin2000, points, truth,
};

#[test]
fn prediction_intervals_have_their_nominal_coverage() {
    let topology = origin2000();
    let truth = truth(SOME);
    let clean = points(&topology, &truth, &[1024, 4096], &areas(60));
    let new_points = points(&topology, &truth, &[2048], &areas(47));
    let mut random = Random::new(5);
    let (mut covered, mut count) = (0.0, 0.0);
    for _ in 0..60 {
        let model = fit_with(&noisy(&mut random, &clean, 0.05), &FitOptions::default()).unwrap();
        for point in noisy(&mut random, &new_points, 0.05) {
            let predicted = predict(&model, point.window_bytes, point.area_bytes);
            assert_eq!(predicted.caution, None);
            let figure = *predicted.ns.known().unwrap();
            covered += f64::from(u8::from((figure.low..=figure.high).contains(&point.ns)));
            count += 1.0;
            let shares: f64 = predicted.expected.iter().map(|hits| hits.share).sum();
            close(shares, 1.0, 1e-12);
        }
    }
    let share: f64 = covered / count;
    assert!((0.93..=0.97).contains(&share), "{share}");
}

#[test]
fn predictions_account_for_fitted_and_fixed_sizes() {
    let topology = origin2000();
    let mut truth = truth(NONE);
    // The router's steps exceed the noise: levels with the same time would have no size of their own.
    truth.insert("t_r".to_owned(), 600.0);
    let clean = points(&topology, &truth, &WINDOWS, &areas(100));
    let new_points = points(&topology, &truth, &[2048], &areas(47));
    for fixed_levels in [BTreeSet::new(), BTreeSet::from([1, 4, 5])] {
        let options = FitOptions {
            sizes: SizeMode::Free,
            fixed_levels: fixed_levels.clone(),
            left_out: LeftOut::Skip,
            ..FitOptions::default()
        };
        let mut random = Random::new(17);
        let (mut inside, mut count) = (0.0, 0.0);
        for _ in 0..12 {
            let model = fit_with(&noisy(&mut random, &clean, 0.01), &options).unwrap();
            let sizes = model.levels.iter().map(|level| level.size_low_bytes);
            let fitted: Vec<bool> = sizes.map(|low| low.is_some()).collect();
            let expected: Vec<bool> = (0..7)
                .map(|level| level < 6 && !fixed_levels.contains(&level))
                .collect();
            assert_eq!(fitted, expected);
            for point in noisy(&mut random, &new_points, 0.01) {
                let predicted = predict(&model, point.window_bytes, point.area_bytes);
                let figure = *predicted.ns.known().unwrap();
                inside += f64::from(u8::from((figure.low..=figure.high).contains(&point.ns)));
                count += 1.0;
            }
        }
        let share: f64 = inside / count;
        assert!((0.92..=0.98).contains(&share), "{fixed_levels:?}: {share}");
    }
}

#[test]
fn predictions_outside_of_the_points_are_marked() {
    let model = fit_with(&clean(SOME), &FitOptions::default()).unwrap();
    let caution = |window, area| predict(&model, Some(window), area).caution;
    assert_eq!(caution(2048, GIB), None);
    let window = caution(512, GIB).unwrap();
    assert!(
        window.starts_with("the window of 512 B lies outside of those measured (1 KiB to "),
        "{window}"
    );
    let area = caution(1024, 64 * GIB).unwrap();
    assert!(
        area.starts_with("the area of 64 GiB lies outside of those measured ("),
        "{area}"
    );
    let shares = predict(&model, Some(1024), 8 * MIB).expected;
    close(shares[0].share, 32.0 / 8192.0, 1e-12);
    close(shares[1].share, 0.5, 1e-12);
    for (window, area, reason) in [
        (None, MIB, "the model is of windows: say of how many bytes"),
        (Some(2 * MIB), MIB, "the window is larger than the area"),
        (Some(0), MIB, "there is no window of 0 bytes"),
        (Some(1), 0, "there is no area of 0 bytes"),
    ] {
        let point = predict(&model, window, area);
        assert_eq!(point.ns.why_missing().unwrap().reason, reason);
    }
    let options = FitOptions {
        points: KeepPoints::Drop,
        ..FitOptions::default()
    };
    let bare = fit_with(&clean(SOME), &options).unwrap();
    assert!(bare.points.is_empty());
    let point = predict(&bare, Some(1024), MIB);
    assert!(point.ns.known().is_some() && point.caution.is_some());
}

#[test]
fn strides_leave_out_lines_and_pages_but_not_the_sets_they_crowd_into() {
    let mut topology = chain(&[32 * KIB, MIB], 64);
    topology.tlb.push(TlbTerm {
        symbol: "t_tlb".to_owned(),
        entries: 64,
        page_bytes: 4 * KIB,
        miss_ns: None,
    });
    let areas: Vec<u64> = (12..30)
        .flat_map(|shift| [1 << shift, 3 << (shift - 1)])
        .collect();
    let data = loads(&topology, &[1.0, 3.0, 80.0], &areas);
    let model = fit(&topology, FitData::Latency, &data, &FitOptions::default()).unwrap();
    let at = |size, stride| predict_stride(&model, size, stride);
    let ns = |size, stride| at(size, stride).ns.known().unwrap().value;
    let whole = |size| predict(&model, None, size).ns.known().unwrap().value;
    // Independent draws (γ = 1) do not depend on elements that share a line.
    for stride in [8, 16, 64] {
        close(ns(8 * MIB, stride), whole(8 * MIB), 1e-12);
    }
    let time = |l1: f64, l2: f64, tlb: f64| {
        1.0 + 3.0 * (1.0 - 1.0 / l1) + 80.0 * (1.0 - 1.0 / l2) + 25.0 * (1.0 - 1.0 / tlb)
    };
    let nothing_kept = |tlb: f64| 84.0 + 25.0 * (1.0 - 1.0 / tlb);
    for (stride, expected, spread, tlb) in [
        // Four lines apart: a quarter of the lines in a quarter of the sets, all pages.
        (256, time(256.0, 8.0, 32.0), time(64.0, 2.0, 32.0), 32.0),
        // Four pages apart: a quarter of the pages; sets as a page's address bits give, or all bits.
        (16 * KIB, time(64.0, 2.0, 8.0), time(1.0, 1.0, 8.0), 8.0),
    ] {
        let point = at(8 * MIB, stride);
        let figure = *point.ns.known().unwrap();
        close(figure.value, expected, 1e-6);
        close(figure.low, spread, 1e-4);
        close(figure.high, nothing_kept(tlb), 1e-4);
        assert_eq!(point.caution, None);
    }
    // Three lines apart: a third of the lines, and all sets.
    let lines = 8.0 * MIB as f64 / 192.0;
    let area = lines.floor() * 64.0;
    let odd = time(area / (32.0 * 1024.0), area / MIB as f64, 32.0);
    close(ns(8 * MIB, 192), odd, 1e-6);
    let far = at(8 * GIB, 64).caution.unwrap();
    assert!(far.starts_with("the area of 8 GiB lies outside"), "{far}");
    for (size, stride, reason) in [
        (MIB, 0, "there is no stride of 0 bytes"),
        (64, 128, "the stride is larger than the buffer"),
    ] {
        assert_eq!(at(size, stride).ns.why_missing().unwrap().reason, reason);
    }
    let windows = fit_with(&clean(NONE), &FitOptions::default()).unwrap();
    let point = predict_stride(&windows, MIB, 64);
    assert_eq!(
        point.ns.why_missing().unwrap().reason,
        "the model is of windows: strides need one of loads"
    );
}

#[test]
fn a_model_without_levels_predicts_nothing_with_a_reason() {
    let ramp: Vec<_> = (10..30)
        .map(|shift| membound_types::Observation {
            window_bytes: None,
            area_bytes: 1 << shift,
            ns: 1.0 + 0.01 * f64::from(shift),
            ns_low: None,
            ns_high: None,
        })
        .collect();
    let fitted: Result<_, FitError> = fit_measured(
        FitData::Latency,
        &ramp,
        &Known::default(),
        Ok,
        &FitOptions::default(),
    );
    let mut model = fitted.unwrap();
    model.levels.clear();
    model.topology.levels.clear();
    for point in [predict(&model, None, MIB), predict_stride(&model, MIB, 128)] {
        let reason = &point.ns.why_missing().unwrap().reason;
        assert_eq!(reason, "the model has no levels");
        assert_eq!(point.caution, None);
    }
}
