//! Counts words in a HashMap of strings, small (fits the second cache) or large.
use std::collections::HashMap;
use std::time::Instant;

#[inline(never)]
fn count(map: &mut HashMap<String, u64>, names: u64, count: u64) -> u64 {
    use std::fmt::Write as _;
    let mut state = 88172645463325252_u64;
    let mut name = String::new();
    let mut sum = 0;
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        name.clear();
        let _ = write!(name, "name{:08}", state % names);
        let value = map.get_mut(name.as_str()).expect("it was put there");
        *value += 1;
        sum += *value;
    }
    sum
}

fn main() {
    let names = if std::env::args().nth(1).as_deref() == Some("small") { 128 } else { 2 << 20 };
    let mut map = HashMap::new();
    for name in 0..names {
        map.insert(format!("name{name:08}"), 0);
    }
    let steps = 4_000_000;
    let begun = Instant::now();
    let sum = count(&mut map, names, steps);
    let took = begun.elapsed().as_secs_f64();
    println!("sum {sum}\nop_ns {:.4}\nphase_s {took:.4}", took / steps as f64 * 1e9);
}
