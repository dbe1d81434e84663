//! Properties of an encoding that do not depend on operands, computed once for all encodings.

use std::sync::LazyLock;

use iced_x86::{
    Code, CpuidFeature, EncodingKind, Instruction, InstructionInfoFactory, InstructionInfoOptions,
    Mnemonic, OpAccess, OpKind,
};

/// How the effects of an encoding are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// From the operands and flags in iced's tables.
    Ordinary,
    /// As [`Kind::Ordinary`], with corrections for the mnemonic.
    Corrected,
    /// It may read and write everything: it enters another privilege level, ends the program or continues
    /// elsewhere, or is unknown.
    Everything,
}

/// The effect of an encoding on MXCSR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mxcsr {
    /// Neither read nor written.
    Untouched,
    /// Its control bits are read and its status bits may be set.
    Arithmetic,
}

/// Properties of an encoding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traits {
    /// How its effects are computed.
    pub(super) kind: Kind,
    /// Its effect on MXCSR.
    pub(super) mxcsr: Mxcsr,
    /// Whether it uses x87 or MMX registers that are not among its operands.
    pub(super) x87: X87,
    /// How each operand is accessed if it is in memory.
    pub(super) memory: [OpAccess; 5],
    /// Whether a write to a vector register clears the bytes above the operand, as with VEX, EVEX and XOP.
    pub(super) clears_upper: UpperParts,
}

/// When an encoding uses the x87 unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum X87 {
    /// Only if an operand is an x87 or MMX register.
    ByOperands,
    /// In every case.
    Always,
}

/// What happens to the bytes of a vector register above the written operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpperParts {
    /// They are unchanged.
    Stay,
    /// They become zero.
    Cleared,
}

/// The properties of `code`.
pub(super) fn of(code: Code) -> &'static Traits {
    static TABLE: LazyLock<Vec<Traits>> = LazyLock::new(table);
    &TABLE[code as usize]
}

fn table() -> Vec<Traits> {
    let mut factory = InstructionInfoFactory::new();
    Code::values()
        .map(|code| traits(code, &mut factory))
        .collect()
}

fn traits(code: Code, factory: &mut InstructionInfoFactory) -> Traits {
    let mut instruction = Instruction::default();
    instruction.set_code(code);
    let features = instruction.cpuid_features();
    let mnemonic = code.mnemonic();
    let operands = instruction.op_count();
    for operand in 0..operands {
        if operand < 4 {
            instruction.set_op_kind(operand, OpKind::Memory);
        }
    }
    let options =
        InstructionInfoOptions::NO_MEMORY_USAGE | InstructionInfoOptions::NO_REGISTER_USAGE;
    let info = factory.info_options(&instruction, options);
    let mut memory = [OpAccess::None; 5];
    if !names_an_address_only(mnemonic) {
        for operand in 0..operands {
            memory[operand as usize] = info.op_access(operand);
        }
    }
    let is_x87 = features.iter().any(|feature| {
        matches!(
            feature,
            CpuidFeature::FPU
                | CpuidFeature::FPU287
                | CpuidFeature::FPU287XL_ONLY
                | CpuidFeature::FPU387
                | CpuidFeature::FPU387SL_ONLY
                | CpuidFeature::D3NOW
                | CpuidFeature::D3NOWEXT
                | CpuidFeature::CYRIX_D3NOW
        )
    }) || matches!(
        mnemonic,
        Mnemonic::Emms | Mnemonic::Femms | Mnemonic::Fisttp
    );
    Traits {
        kind: kind(code, mnemonic, &instruction),
        mxcsr: if computes_floats(mnemonic) {
            Mxcsr::Arithmetic
        } else {
            Mxcsr::Untouched
        },
        x87: if is_x87 { X87::Always } else { X87::ByOperands },
        memory,
        clears_upper: match instruction.encoding() {
            EncodingKind::Legacy | EncodingKind::D3NOW => UpperParts::Stay,
            _ => UpperParts::Cleared,
        },
    }
}

/// True if the memory operand is only an address and is not accessed.
fn names_an_address_only(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Lea
            | Mnemonic::Nop
            | Mnemonic::Reservednop
            | Mnemonic::Prefetch
            | Mnemonic::Prefetchw
            | Mnemonic::Prefetchwt1
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchit0
            | Mnemonic::Prefetchit1
            | Mnemonic::Clflush
            | Mnemonic::Clflushopt
            | Mnemonic::Clwb
            | Mnemonic::Cldemote
            | Mnemonic::Invlpg
            | Mnemonic::Bndmk
            | Mnemonic::Bndcl
            | Mnemonic::Bndcu
            | Mnemonic::Bndcn
            | Mnemonic::Bndmov
            | Mnemonic::Bndldx
            | Mnemonic::Bndstx
    )
}

fn kind(code: Code, mnemonic: Mnemonic, instruction: &Instruction) -> Kind {
    if may_touch_everything(mnemonic)
        || instruction.is_privileged()
        || instruction.encoding() == EncodingKind::MVEX
        || is_far(code)
    {
        Kind::Everything
    } else if is_corrected(mnemonic) || is_constant_idiom(mnemonic) {
        Kind::Corrected
    } else {
        Kind::Ordinary
    }
}

/// True for indirect calls and jumps to another segment.
fn is_far(code: Code) -> bool {
    matches!(
        code,
        Code::Call_m1616
            | Code::Call_m1632
            | Code::Call_m1664
            | Code::Jmp_m1616
            | Code::Jmp_m1632
            | Code::Jmp_m1664
    )
}

/// True if iced reports fewer or other effects than the processor has, and nothing is known to stay the same.
fn may_touch_everything(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::INVALID
            | M::Db
            | M::Dw
            | M::Dd
            | M::Dq
            | M::Ud0
            | M::Ud1
            | M::Ud2
            | M::Int
            | M::Int1
            | M::Int3
            | M::Into
            | M::Iret
            | M::Iretd
            | M::Iretq
            | M::Retf
            | M::Sysenter
            | M::Sysexit
            | M::Sysexitq
            | M::Sysret
            | M::Sysretq
            | M::Hlt
            | M::Xbegin
            | M::Xend
            | M::Xabort
            | M::Vmcall
            | M::Vmmcall
            | M::Vmgexit
            | M::Vmlaunch
            | M::Vmresume
            | M::Vmrun
            | M::Vmfunc
            | M::Rsm
            | M::Uiret
            | M::Senduipi
            | M::Enclu
            | M::Encls
            | M::Enclv
            | M::Skinit
            | M::Loadall
            | M::Tdcall
            | M::Seamcall
            | M::Seamret
            | M::Seamops
            | M::Eretu
            | M::Erets
            | M::Llwpcb
            | M::Slwpcb
            | M::Pvalidate
            | M::Hreset
    )
}

/// True if [`super::effects`] corrects what iced reports.
fn is_corrected(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Syscall
            | M::Bsf
            | M::Bsr
            | M::Vzeroall
            | M::Vzeroupper
            | M::Ldmxcsr
            | M::Vldmxcsr
            | M::Stmxcsr
            | M::Vstmxcsr
            | M::Xgetbv
            | M::Nop
            | M::Reservednop
            | M::Rdsspd
            | M::Rdsspq
            | M::Rcl
            | M::Rcr
            | M::Rol
            | M::Ror
            | M::Sal
            | M::Sar
            | M::Shl
            | M::Shr
            | M::Shld
            | M::Shrd
            | M::Sbb
            | M::Insertq
            | M::Sldt
            | M::Str
            | M::Smsw
    ) || saves_extended_state(mnemonic)
        || loads_extended_state(mnemonic)
}

/// True for the instructions that save vectors, x87 and other extended state.
pub(super) fn saves_extended_state(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Fxsave
            | M::Fxsave64
            | M::Xsave
            | M::Xsave64
            | M::Xsavec
            | M::Xsavec64
            | M::Xsaveopt
            | M::Xsaveopt64
            | M::Xsaves
            | M::Xsaves64
    )
}

/// True for the instructions that load it.
pub(super) fn loads_extended_state(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Fxrstor | M::Fxrstor64 | M::Xrstor | M::Xrstor64 | M::Xrstors | M::Xrstors64
    )
}

/// True if the result is a constant when both sources are the same register.
pub(super) fn is_constant_idiom(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Xor
            | M::Sub
            | M::Pxor
            | M::Xorps
            | M::Xorpd
            | M::Vpxor
            | M::Vpxord
            | M::Vpxorq
            | M::Vxorps
            | M::Vxorpd
            | M::Pandn
            | M::Andnps
            | M::Andnpd
            | M::Vpandn
            | M::Vpandnd
            | M::Vpandnq
            | M::Vandnps
            | M::Vandnpd
            | M::Psubb
            | M::Psubw
            | M::Psubd
            | M::Psubq
            | M::Vpsubb
            | M::Vpsubw
            | M::Vpsubd
            | M::Vpsubq
            | M::Pcmpeqb
            | M::Pcmpeqw
            | M::Pcmpeqd
            | M::Pcmpeqq
            | M::Vpcmpeqb
            | M::Vpcmpeqw
            | M::Vpcmpeqd
            | M::Vpcmpeqq
            | M::Pcmpgtb
            | M::Pcmpgtw
            | M::Pcmpgtd
            | M::Pcmpgtq
            | M::Vpcmpgtb
            | M::Vpcmpgtw
            | M::Vpcmpgtd
            | M::Vpcmpgtq
            | M::Kxorb
            | M::Kxorw
            | M::Kxord
            | M::Kxorq
            | M::Kxnorb
            | M::Kxnorw
            | M::Kxnord
            | M::Kxnorq
            | M::Kandnb
            | M::Kandnw
            | M::Kandnd
            | M::Kandnq
    )
}

/// True for SSE or AVX floating-point arithmetic, which reads and sets bits of MXCSR; not for instructions
/// that only move floats or treat them as bits. Decided by the mnemonic, because the names are regular: an
/// operation, then the type.
fn computes_floats(mnemonic: Mnemonic) -> bool {
    const OPERATIONS: [&str; 36] = [
        "add", "sub", "mul", "div", "sqrt", "min", "max", "cmp", "comi", "ucomi", "comx", "ucomx",
        "round", "rndscale", "dp", "hadd", "hsub", "fmadd", "fmsub", "fnmadd", "fnmsub", "fmul",
        "fcmadd", "fcmul", "4fmadd", "4fnmadd", "range", "reduce", "getexp", "getmant", "fixupimm",
        "scalef", "rcp", "rsqrt", "exp2", "fpclass",
    ];
    const TYPES: [&str; 6] = ["ps", "pd", "ss", "sd", "ph", "sh"];
    let name = format!("{mnemonic:?}").to_ascii_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    name.starts_with("cvt")
        || name.starts_with("frcz")
        || TYPES.iter().any(|kind| name.ends_with(kind))
            && OPERATIONS
                .iter()
                .any(|operation| name.starts_with(operation))
}
