//! Handlers see the original program, wherever a signal finds a thread.

use membound_wire::{Place, Shape, Step, TableHeader, Undo};

/// The bytes of a table with one step a shape: places as (code, original), the shape of
/// each place, shapes' steps as (offset, resume, undo, undos), undos as (kind, register,
/// value); every place is an entry.
pub(crate) fn table(
    places: &[(u32, u32)],
    shapes: &[u32],
    steps: &[(u16, u16, u16, u16)],
    undos: &[(u8, u8, i32)],
) -> Vec<u8> {
    steps_table(places, shapes, &[(0, steps.len() as u32)], steps, undos)
}

/// As [`table`], with shapes as (first step, number of steps).
pub(crate) fn steps_table(
    places: &[(u32, u32)],
    place_shapes: &[u32],
    shapes: &[(u32, u32)],
    steps: &[(u16, u16, u16, u16)],
    undos: &[(u8, u8, i32)],
) -> Vec<u8> {
    let mut body = Vec::new();
    let mut offsets = [0; 5];
    let start = size_of::<TableHeader>();
    offsets[0] = start;
    for (&(code, original), &shape) in places.iter().zip(place_shapes) {
        for word in [code, original, shape] {
            body.extend(word.to_ne_bytes());
        }
    }
    offsets[1] = start + body.len();
    for (first, count) in shapes {
        body.extend(first.to_ne_bytes());
        body.extend(count.to_ne_bytes());
    }
    offsets[2] = start + body.len();
    for (offset, resume, undo, count) in steps {
        for word in [offset, resume, undo, count] {
            body.extend(word.to_ne_bytes());
        }
    }
    offsets[3] = start + body.len();
    for (kind, register, value) in undos {
        body.extend([*kind, *register, 0, 0]);
        body.extend(value.to_ne_bytes());
    }
    offsets[4] = start + body.len();
    let mut entries: Vec<u32> = (0..places.len() as u32).collect();
    entries.sort_by_key(|&index| places[index as usize].1);
    for entry in &entries {
        body.extend(entry.to_ne_bytes());
    }
    assert_eq!((size_of::<Place>(), size_of::<Shape>()), (12, 8));
    assert_eq!((size_of::<Step>(), size_of::<Undo>()), (8, 8));
    let counts = [places.len(), shapes.len(), steps.len(), undos.len(), entries.len()];
    let mut bytes = Vec::new();
    for (offset, count) in offsets.iter().zip(counts) {
        bytes.extend((*offset as u64).to_ne_bytes());
        bytes.extend((count as u64).to_ne_bytes());
    }
    bytes.extend(body);
    bytes
}
