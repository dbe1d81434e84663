//! Any code as the functions of a module: a plan for it leaves whatever is not patched as it
//! was, leads control to its trampolines and back, and reads back the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use membound_rewrite::code::{Function, ImageFacts, Tables};
use membound_rewrite::image::Image;
use membound_rewrite::patch::{Accesses, Body, Options, Placement, Plan, Yield};

mod code;
#[path = "code/placed.rs"]
mod placed;
#[path = "code/wrapper.rs"]
mod wrapper;

const BODIES: [Body; 11] = [
    Body::Displace,
    Body::Count { exact: false },
    Body::Count { exact: true },
    Body::Rubbish,
    Body::Sample,
    Body::Record,
    Body::PrefetchYield,
    Body::Yield(Yield::Primary),
    Body::Yield(Yield::Miss {
        cost: 100,
        own_base: false,
    }),
    Body::Yield(Yield::Bound {
        cost: 100,
        own_base: true,
    }),
    Body::Yield(Yield::Base),
];

fuzz_target!(|bytes: &[u8]| {
    // The last three bytes choose, so that code begins where it begins.
    let Some((bytes, [what, how, cut])) = bytes.split_last_chunk() else {
        return;
    };
    let kind = if how & 1 == 0 {
        wrapper::Kind::Shared
    } else {
        wrapper::Kind::Fixed
    };
    let middle = bytes.len() * usize::from(*cut) / 256;
    let functions: Vec<&[u8]> = [&bytes[..middle], &bytes[middle..]]
        .into_iter()
        .filter(|code| !code.is_empty())
        .collect();
    let file = wrapper::wrap(kind, &functions);
    let Ok(image) = Image::parse(&file) else {
        return;
    };
    let mut options = Options::new(BODIES[usize::from(*what) % BODIES.len()]);
    if how & 2 != 0 {
        options.tables = Tables::Ignore;
    }
    if how & 4 != 0 {
        options.accesses = Accesses::Loads;
    }
    check(&image, &options, u64::from(how >> 3));
});

fn check(image: &Image<'_>, options: &Options, pages: u64) {
    let plan = Plan::make(image, options);
    let again = Plan::from_bytes(plan.as_bytes().to_vec()).expect("a plan reads back");
    assert!(
        again.is_for(&image.identity(), options),
        "a plan is for what it was made for"
    );
    assert_eq!(
        plan.as_bytes(),
        Plan::make(image, options).as_bytes(),
        "the same plan twice"
    );

    let span = image.span();
    let bias = if span.start >= 1 << 20 {
        0
    } else {
        0x7f12_3456_7000
    };
    let placement = Placement {
        bias,
        area: (bias + span.end).next_multiple_of(4096) + (pages << 22),
    };
    let placed = again
        .place(&placement)
        .expect("there is room beside the module");
    assert_eq!(placed.code, plan.place(&placement).expect("as before").code);

    let knowledge = ImageFacts::gather(image, options.tables);
    let functions: Vec<Function> = (0..image.functions().len())
        .map(|index| Function::decode(image, &knowledge, index))
        .collect();
    functions.iter().for_each(code::check_function);
    placed::Ground {
        image,
        functions: &functions,
        plan: &plan,
        placement,
        placed: &placed,
    }
    .check();
    let sites: Vec<_> = plan.sites().collect();
    assert!(
        sites.is_sorted_by_key(|site| site.address),
        "sites are sorted"
    );
    for site in &sites {
        if let Ok(number) = site.number {
            assert!(number < plan.numbered_sites());
        }
    }
}
