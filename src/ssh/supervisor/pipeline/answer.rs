//! Decides which stages may commit or open their file: those whose earlier stages have all succeeded.

use super::{PipelineWork, ProceedState, StageState};
use crate::ssh::{
    outcome::{SIGPIPE_STATUS, describe, shell_status},
    protocol::{Payload, ToAgent},
    stage::ToStage,
    supervisor::Action,
};

impl PipelineWork {
    /// Returns the answers to the stages that wait for the earlier stages and whose results are known: Proceed or Kill.
    pub(super) fn answers(&mut self) -> Vec<Action> {
        let mut answers = Vec::new();
        for stage in 0..self.stages.len() {
            if self.stages[stage].turn != ProceedState::Waits {
                continue;
            }
            let message = match self.before(stage) {
                None => continue,
                Some(Ok(())) => Payload::encode(&ToStage::Proceed)
                    .ok()
                    .map(ToAgent::Application),
                Some(Err(reason)) => Some(ToAgent::Kill { reason }),
            };
            self.stages[stage].turn = ProceedState::Answered;
            answers.extend(message.map(|message| Action::Send(stage, message)));
        }
        answers
    }

    /// Returns `Ok` if every earlier stage has succeeded, and the failure if one has not. Returns none while the
    /// result of one is still unknown.
    fn before(&self, stage: usize) -> Option<Result<(), String>> {
        let mut successor_is_fine = true;
        let mut failure = None;
        for index in (0..stage).rev() {
            let StageState { ended, report, .. } = &self.stages[index];
            let status = (*ended)?;
            let is_fine = match shell_status(status) {
                0 => true,
                SIGPIPE_STATUS => report.as_ref()?.output_stopped && successor_is_fine,
                _ => false,
            };
            if !is_fine {
                let site = self.plan.site(index);
                failure = Some(format!("{site} {}", describe(status)));
            }
            successor_is_fine = is_fine;
        }
        Some(failure.map_or(Ok(()), Err))
    }
}
