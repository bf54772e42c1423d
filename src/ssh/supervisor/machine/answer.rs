//! Who may commit or open a file: those before which everything has succeeded.

use super::{PipelineMachine, ProceedState, StageState};
use crate::ssh::{
    outcome::{SIGPIPE_STATUS, describe, shell_status},
    protocol::{Payload, ToAgent},
    stage::ToStage,
};

impl PipelineMachine {
    /// Answers the stages that wait for those before them.
    pub(super) fn answer(&mut self) {
        for stage in 0..self.stages.len() {
            if self.stages[stage].turn != ProceedState::Waits || self.is_ending() {
                continue;
            }
            match self.before(stage) {
                None => {}
                Some(Ok(())) => {
                    self.stages[stage].turn = ProceedState::Answered;
                    if let Ok(message) = Payload::encode(&ToStage::Proceed) {
                        self.send(stage, ToAgent::Application(message));
                    }
                }
                Some(Err(reason)) => {
                    self.stages[stage].turn = ProceedState::Answered;
                    self.send(stage, ToAgent::Kill { reason });
                }
            }
        }
    }

    /// Whether everything before the stage has succeeded, or what has not; none while it is open.
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
