//! Patches the dynamic loader so that it calls the agent when it loads objects.
//!
//! A loader calls a nearly empty function, for debuggers, whenever its list of objects is about to change
//! or has changed. The entry of that function is patched like any other code.

use std::path::PathBuf;
use std::sync::Arc;

use membound_rewrite::patch::entry_hook;

use membound_wire::TextMode;

use crate::area::{Area, Common, NotInstalled, Text};
use crate::conversation::Conversation;
use crate::maps::Mapping;
use crate::modules::{Loaded, ModulePlan};

/// Installs this hook.
pub(crate) fn loader(
    conversation: &Conversation,
    maps: &mut Vec<Mapping>,
    common: Common,
) -> Result<Area, NotInstalled> {
    let at = conversation.hello.loader_hook;
    let bytes = &conversation.hello.loader_hook_bytes;
    if at == 0 {
        return Err(NotInstalled::Plan(
            "its loader tells nobody of new objects".to_owned(),
        ));
    }
    let plan = entry_hook(bytes, at).map_err(|refusal| NotInstalled::Plan(refusal.to_string()))?;
    let module = ModulePlan::piece(PathBuf::from("the loader's announcement"), at, bytes, plan);
    let loaded = Loaded {
        module: Arc::new(module),
        bias: 0,
    };
    let plan = loaded.module.plan.as_ref();
    let plan = plan.map_err(|refused| NotInstalled::Plan(refused.reason.clone()))?;
    let (area, _) = Area::install(
        conversation,
        maps,
        &loaded,
        plan,
        common,
        0,
        Text {
            mode: TextMode::Quiet,
            others: &[],
        },
    )?;
    if area.holds([at].into_iter()) {
        Ok(area)
    } else {
        area.unmap(conversation)?;
        Err(NotInstalled::Plan(
            "somebody else has changed the loader's function".to_owned(),
        ))
    }
}
