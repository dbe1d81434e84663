//! What `cargo xtask bench coverage` lets a Rust program in release execute: containers, text,
//! sorting, matches that become jump tables, panics that are caught, threads. Prints one
//! line, so that a run that went wrong is seen.

use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::Write as _;
use std::panic;
use std::rc::Rc;
use std::sync::mpsc;

const ROUNDS: u64 = 300;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
    Open,
    Close,
}

fn tokens(text: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(&letter) = letters.peek() {
        match letter {
            '0'..='9' => {
                let mut digits = String::new();
                while let Some(&digit) = letters.peek() {
                    if !digit.is_ascii_digit() && digit != '.' {
                        break;
                    }
                    digits.push(digit);
                    letters.next();
                }
                found.push(Token::Number(digits.parse().unwrap()));
            }
            'a'..='z' | 'A'..='Z' | 'ä'..='ü' => {
                let mut name = String::new();
                while let Some(&part) = letters.peek() {
                    if !part.is_alphanumeric() {
                        break;
                    }
                    name.extend(part.to_lowercase());
                    letters.next();
                }
                found.push(Token::Name(name));
            }
            '(' => {
                found.push(Token::Open);
                letters.next();
            }
            ')' => {
                found.push(Token::Close);
                letters.next();
            }
            _ => {
                if !letter.is_whitespace() {
                    found.push(Token::Sign(letter));
                }
                letters.next();
            }
        }
    }
    found
}

enum Tree {
    Leaf(f64),
    Name(Rc<str>),
    Node(char, Box<Tree>, Box<Tree>),
}

fn sum(tokens: &mut VecDeque<Token>) -> Tree {
    let mut left = product(tokens);
    while let Some(&Token::Sign(sign @ ('+' | '-'))) = tokens.front() {
        tokens.pop_front();
        left = Tree::Node(sign, Box::new(left), Box::new(product(tokens)));
    }
    left
}

fn product(tokens: &mut VecDeque<Token>) -> Tree {
    let mut left = atom(tokens);
    while let Some(&Token::Sign(sign @ ('*' | '/' | '%'))) = tokens.front() {
        tokens.pop_front();
        left = Tree::Node(sign, Box::new(left), Box::new(atom(tokens)));
    }
    left
}

fn atom(tokens: &mut VecDeque<Token>) -> Tree {
    match tokens.pop_front() {
        Some(Token::Number(value)) => Tree::Leaf(value),
        Some(Token::Name(name)) => Tree::Name(name.into()),
        Some(Token::Open) => {
            let inside = sum(tokens);
            assert_eq!(tokens.pop_front(), Some(Token::Close), "an open parenthesis");
            inside
        }
        other => panic!("unexpected {other:?}"),
    }
}

fn value(tree: &Tree, names: &HashMap<String, f64>) -> f64 {
    match tree {
        Tree::Leaf(value) => *value,
        Tree::Name(name) => names[&**name],
        Tree::Node(sign, left, right) => {
            let (left, right) = (value(left, names), value(right, names));
            match sign {
                '+' => left + right,
                '-' => left - right,
                '*' => left * right,
                '/' => left / right,
                '%' => left % right,
                _ => f64::NAN,
            }
        }
    }
}

fn expressions(seed: u64) -> f64 {
    let names: HashMap<String, f64> =
        (0..20).map(|i| (format!("x{i}"), (i * seed) as f64 / 3.0)).collect();
    let mut total = 0.0;
    for i in 0..20 {
        let text = format!("(x{i} + {seed}) * 3.5 - X{} / (1 + {i}) % 7", (i + 3) % 20);
        total += value(&sum(&mut tokens(&text).into()), &names);
    }
    for text in ["(1 + 2", "x99 * 2", "* 3"] {
        let caught = panic::catch_unwind(|| value(&sum(&mut tokens(text).into()), &names));
        total += f64::from(u8::from(caught.is_err()));
    }
    total
}

/// A machine with an instruction set large enough for a jump table.
fn machine(seed: u64) -> u64 {
    let code: Vec<(u8, u64)> =
        (0..64).map(|i: u64| ((i.wrapping_mul(seed * 2 + 1) % 14) as u8, i)).collect();
    let mut stack: Vec<u64> = vec![seed, 3];
    let mut memory = [0_u64; 16];
    let mut steps = 0;
    let mut at = 0;
    while steps < 600 {
        let (operation, operand) = code[at];
        at = (at + 1) % code.len();
        steps += 1;
        let top = stack.last().copied().unwrap_or(1);
        match operation {
            0 => stack.push(operand),
            1 => stack.push(top.wrapping_add(operand)),
            2 => stack.push(top.wrapping_mul(operand | 1)),
            3 => drop(stack.pop()),
            4 => memory[operand as usize % 16] = top,
            5 => stack.push(memory[operand as usize % 16]),
            6 => stack.push(top >> (operand % 8)),
            7 => at = (at + (top % 5) as usize) % code.len(),
            8 => stack.push(top ^ operand),
            9 => stack.swap_remove(0).clone_into(&mut memory[1]),
            10 => stack.push(u64::from(top.count_ones())),
            11 => memory.rotate_left(operand as usize % 16),
            12 => stack.push(memory.iter().copied().fold(0, u64::wrapping_add)),
            _ => stack.truncate(32),
        }
        if stack.is_empty() {
            stack.push(operand);
        }
    }
    stack.iter().chain(&memory).fold(0, |sum: u64, one| sum.wrapping_add(*one)) % 1000
}

fn containers(seed: u64) -> usize {
    let mut words = Vec::new();
    for i in 0..150_u64 {
        words.push(format!("wort-{:04x}", i.wrapping_mul(seed * 40503) % 4096));
    }
    words.sort_unstable();
    words.dedup();
    let mut ordered: BTreeMap<&str, usize> = BTreeMap::new();
    for word in &words {
        *ordered.entry(&word[..7]).or_default() += word.len();
    }
    let set: HashSet<char> = words.iter().flat_map(|word| word.chars()).collect();
    let mut heap: BinaryHeap<usize> = ordered.values().copied().collect();
    let mut text = String::new();
    while let Some(largest) = heap.pop() {
        write!(text, "{largest:>6} {:.2e};", largest as f64 / 7.0).unwrap();
    }
    let numbers: Vec<f64> =
        text.split(';').filter_map(|part| part.split_whitespace().last()?.parse().ok()).collect();
    ordered.retain(|_, length| *length % 3 != 0);
    text.to_uppercase().bytes().rev().filter(u8::is_ascii_digit).count()
        + ordered.range("wort-2".."wort-9").count()
        + set.len()
        + numbers.len()
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    let mut total = 0.0;
    for seed in 1..ROUNDS {
        total += expressions(seed) + machine(seed) as f64 + containers(seed) as f64;
    }
    let (send, receive) = mpsc::channel();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let send = send.clone();
            scope.spawn(move || send.send(containers(seed + 5)).unwrap());
        }
    });
    drop(send);
    println!("rust {:.0}", total + receive.iter().sum::<usize>() as f64);
}
