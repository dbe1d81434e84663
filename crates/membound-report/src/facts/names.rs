//! The names of things as the command line and the documents write them.

use membound_types::{
    Access, BandwidthKernel, Basis, Fence, Filler, Mlp, Pattern, PrefetchPattern, PrefetchState,
    ThpState, TrafficMix, VectorWidth, WindowKernel,
};

use crate::units;

pub(crate) const fn pattern_name(pattern: Pattern) -> &'static str {
    match pattern {
        Pattern::Random => "random",
        Pattern::Stride => "stride",
        Pattern::PageRandom => "page-random",
        Pattern::Indexed => "indexed",
    }
}

pub(crate) const fn access_name(access: Access) -> &'static str {
    match access {
        Access::Clean => "clean",
        Access::Dirty => "dirty",
    }
}

pub(crate) const fn window_kernel_name(kernel: WindowKernel) -> &'static str {
    match kernel {
        WindowKernel::Scalar => "scalar",
        WindowKernel::ScalarPrefetch => "scalar-prefetch",
        WindowKernel::Vector => "vector",
        WindowKernel::VectorPrefetch => "vector-prefetch",
    }
}

pub(crate) const fn bandwidth_kernel_name(kernel: BandwidthKernel) -> &'static str {
    match kernel {
        BandwidthKernel::Read => "read",
        BandwidthKernel::Write => "write",
        BandwidthKernel::NtWrite => "nt-write",
        BandwidthKernel::Copy => "copy",
        BandwidthKernel::Triad => "triad",
    }
}

pub(crate) const fn vector_name(width: VectorWidth) -> &'static str {
    match width {
        VectorWidth::V128 => "128-bit",
        VectorWidth::V256 => "256-bit",
        VectorWidth::V512 => "512-bit",
    }
}

pub(crate) const fn filler_name(filler: Filler) -> &'static str {
    match filler {
        Filler::Nop => "nop",
        Filler::Integer => "integer",
        Filler::Vector => "vector",
    }
}

pub(crate) const fn fence_name(fence: Fence) -> &'static str {
    match fence {
        Fence::Cpuid => "cpuid",
        Fence::Lfence => "lfence",
    }
}

pub(crate) const fn basis_name(basis: Basis) -> &'static str {
    match basis {
        Basis::Measured => "measured",
        Basis::Estimated => "estimated",
        Basis::Modelled => "modelled",
        Basis::Declared => "declared",
    }
}

pub(crate) const fn thp_name(state: ThpState) -> &'static str {
    match state {
        ThpState::Always => "always",
        ThpState::Madvise => "madvise",
        ThpState::Never => "never",
    }
}

pub(crate) fn prefetch_state_name(state: &PrefetchState) -> String {
    match state {
        PrefetchState::Default => "as found".to_owned(),
        PrefetchState::Off => "all off".to_owned(),
        PrefetchState::Without(name) => format!("without {name}"),
    }
}

pub(crate) fn prefetch_pattern_name(pattern: PrefetchPattern) -> String {
    match pattern {
        PrefetchPattern::Forward { stride_bytes } => {
            format!("forward, stride {}", units::bytes(stride_bytes))
        }
        PrefetchPattern::Backward { stride_bytes } => {
            format!("backward, stride {}", units::bytes(stride_bytes))
        }
        PrefetchPattern::Interleaved { streams } => format!("{streams} streams in turns"),
        PrefetchPattern::AdjacentLine => "adjacent line".to_owned(),
        PrefetchPattern::PageRandom => "random inside a page".to_owned(),
        PrefetchPattern::PointerArray => "array of pointers".to_owned(),
        PrefetchPattern::NextPage => "into the next page".to_owned(),
        PrefetchPattern::Random => "random (reference)".to_owned(),
    }
}

pub(crate) fn mix_name(mix: TrafficMix) -> String {
    match (mix.reads, mix.writes) {
        (_, 0) => "reads only".to_owned(),
        (0, _) => "writes only".to_owned(),
        (reads, writes) => format!(
            "{} : {}",
            units::plural(reads as usize, "read"),
            units::plural(writes as usize, "write")
        ),
    }
}

/// The conditions of one run of the part `mlp`, to tell it from the others.
pub(crate) fn mlp_label(mlp: &Mlp) -> String {
    format!("{} pages, node {}", mlp.page, mlp.node)
}
