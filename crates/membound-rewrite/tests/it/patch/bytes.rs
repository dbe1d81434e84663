//! Plans are read back as they were written, and damaged ones are errors.

use membound_rewrite::patch::{Body, Options, Placement, Plan};
use proptest::prelude::*;

const AT: u64 = 0x7f12_3450_0000;

fn some_plan() -> Plan {
    // mov rax,[rdi]; add rax,rcx; mov [rdi+8],rax; cmp byte [rip+0x10],0; je +2;
    // mov eax,[rsi]; ret and padding
    let code = [
        0x48, 0x8b, 0x07, 0x48, 0x01, 0xc8, 0x48, 0x89, 0x47, 0x08, 0x80, 0x3d, 0x10, 0, 0, 0, 0,
        0x74, 0x02, 0x8b, 0x06, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
    ];
    Plan::of_code(&code, AT, &Options::new(Body::Sample))
}

fn placement() -> Placement {
    Placement {
        bias: 0,
        area: AT + (1 << 30),
    }
}

#[test]
fn a_plan_is_read_back_as_it_was_written() {
    let plan = some_plan();
    let again = Plan::from_bytes(plan.as_bytes().to_vec()).unwrap();
    assert_eq!(plan.layout(), again.layout());
    assert_eq!(
        plan.sites().collect::<Vec<_>>(),
        again.sites().collect::<Vec<_>>()
    );
    assert!(plan.sites().filter(|site| site.number.is_ok()).count() >= 3);
    let (left, right) = (
        plan.place(&placement()).unwrap(),
        again.place(&placement()).unwrap(),
    );
    assert_eq!(left.edits, right.edits);
    assert_eq!(left.code, right.code);
    assert_eq!(left.tables, right.tables);
}

#[test]
fn an_area_out_of_reach_is_refused() {
    let far = Placement {
        bias: 0,
        area: AT + (1 << 33),
    };
    assert!(some_plan().place(&far).is_err());
    let odd = Placement {
        bias: 0,
        area: AT + (1 << 20) + 1,
    };
    assert!(some_plan().place(&odd).is_err());
}

proptest! {
    #[test]
    fn damaged_plans_do_not_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = some_plan().as_bytes().to_vec();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        look_at(bytes);
    }

    #[test]
    fn plans_with_good_headers_do_not_panic_either(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200),
    ) {
        let mut bytes = some_plan().as_bytes().to_vec();
        // Behind the header, which its checksum protects.
        let header = 256;
        for (at, value) in changes {
            let at = header + at.index(bytes.len() - header);
            bytes[at] = value;
        }
        look_at(bytes);
    }
}

fn look_at(bytes: Vec<u8>) {
    let Ok(plan) = Plan::from_bytes(bytes) else {
        return;
    };
    let _ = plan.sites().count() + plan.hooks().count() + plan.functions().count();
    let _ = plan.island_pages().count();
    for site in plan.sites() {
        if let Ok(number) = site.number {
            let _ = plan.data_words(number);
        }
    }
    for bias in [0, u64::MAX - 0xfff, 1 << 40] {
        let _ = plan.place(&Placement {
            bias,
            ..placement()
        });
    }
}
