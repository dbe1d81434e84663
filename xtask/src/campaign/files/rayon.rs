//! Parallel iterators, joins and scopes, with panics that cross the pool.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

fn sums() {
    let numbers: Vec<u64> = (0..2_000_000).collect();
    let sum: u64 = numbers.par_iter().map(|n| n * n % 1009).sum();
    let again: u64 = numbers.iter().map(|n| n * n % 1009).sum();
    assert_eq!(sum, again);
    let mut mixed: Vec<u64> = numbers
        .par_iter()
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect();
    mixed.par_sort_unstable();
    assert!(mixed.windows(2).all(|pair| pair[0] <= pair[1]));
    let mut words: Vec<String> = (0..50_000_u32).map(|n| format!("{:x}", n * 7919)).collect();
    words.par_sort();
    println!("{sum} {} {}", mixed[12345], words[321]);
}

fn panics() {
    let mut caught = 0;
    for round in 0..200_u64 {
        let done = AtomicU64::new(0);
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            (0..1000_u64).into_par_iter().for_each(|n| {
                if n == round * 5 && round % 2 == 0 {
                    panic::panic_any(n);
                }
                done.fetch_add(n, Ordering::Relaxed);
            });
        }));
        match result {
            Ok(()) => assert_eq!(done.into_inner(), 499_500),
            Err(payload) => {
                assert_eq!(*payload.downcast::<u64>().unwrap(), round * 5);
                caught += 1;
            }
        }
    }
    println!("{caught}");
    assert_eq!(caught, 100);
}

fn quick_sort(values: &mut [i64]) {
    if values.len() < 20 {
        values.sort_unstable();
        return;
    }
    let pivot = values[values.len() / 2];
    let mut low = 0;
    let mut high = values.len() - 1;
    loop {
        while values[low] < pivot {
            low += 1;
        }
        while values[high] > pivot {
            high -= 1;
        }
        if low >= high {
            break;
        }
        values.swap(low, high);
        low += 1;
        high -= 1;
    }
    let (left, right) = values.split_at_mut(low);
    rayon::join(|| quick_sort(left), || quick_sort(right));
}

fn nested() {
    let mut values: Vec<i64> = (0..300_000_i64).map(|n| n * 7_368_787 % 300_007).collect();
    let mut again = values.clone();
    again.sort_unstable();
    quick_sort(&mut values);
    assert_eq!(values, again);
    let total = AtomicU64::new(0);
    rayon::scope(|scope| {
        for outer in 0..50_u64 {
            let total = &total;
            scope.spawn(move |scope| {
                for inner in 0..20 {
                    scope.spawn(move |_| {
                        total.fetch_add(outer * inner, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.into_inner(), 1225 * 190);
    println!("{}", values[777]);
}

fn strings() {
    let text: String = (0..100_000_u32).map(|n| format!("w{} ", n * n % 5003)).collect();
    let mut counts: Vec<(String, usize)> = text
        .par_split_whitespace()
        .fold(std::collections::BTreeMap::new, |mut map, word| {
            *map.entry(word.to_owned()).or_insert(0_usize) += 1;
            map
        })
        .reduce(std::collections::BTreeMap::new, |mut left, right| {
            for (word, count) in right {
                *left.entry(word).or_insert(0) += count;
            }
            left
        })
        .into_iter()
        .collect();
    counts.par_sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), 100_000);
    println!("{:?}", &counts[..5]);
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    match std::env::args().nth(1).as_deref() {
        Some("sums") => sums(),
        Some("panics") => panics(),
        Some("nested") => nested(),
        Some("strings") => strings(),
        _ => std::process::exit(98),
    }
}
