//! A macro that makes tests over one data path of promises that are generic over it.

/// Makes a test over `$ends` of every `noun::promise`, where `noun` is a module beside the one that uses the macro.
macro_rules! promises {
    (over $ends:ty: $($noun:ident::$promise:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() -> anyhow::Result<()> {
            if let Some(why) = <$ends as crate::support::ends::Ends>::missing() {
                crate::support::skip(&why);
                return Ok(());
            }
            let body = super::$noun::$promise::<$ends>(rdpipe::StreamConfig::default());
            crate::support::waiting::within(crate::support::waiting::generous(), stringify!($promise), body).await
        }
    )* };
}
