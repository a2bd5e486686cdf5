//! What a message asks for.

macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident = $code:literal $name:literal,)*) => {
        /// What a message asks for. An answer has the op of its request.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u16)]
        pub enum Op { $($(#[$doc])* $variant = $code,)* }

        impl Op {
            /// Every op.
            pub const ALL: &[Op] = &[$(Op::$variant,)*];

            /// The op of this number, if there is one.
            pub fn of(code: u16) -> Option<Op> {
                match code {
                    $($code => Some(Op::$variant),)*
                    _ => None,
                }
            }

            /// Its name in messages.
            pub const fn name(self) -> &'static str {
                match self { $(Op::$variant => $name,)* }
            }
        }
    };
}

ops! {
    /// The first message of a connection: who comes, and as what. The answer: [`Facts`](crate::Facts).
    Hello = 1 "hello",
    /// Bytes of the device.
    Read = 2 "read",
    /// Bytes for the device.
    Write = 3 "write",
    /// Every write that was answered before this came survives a power cut.
    Flush = 4 "flush",
    /// Changes the device's length.
    SetLen = 5 "set_len",
    /// A range of the device is not needed any more.
    Trim = 6 "trim",
    /// Begins a job; the answer does not wait for its end.
    JobStart = 7 "job start",
    /// What the worker has to work with, for jobs.
    JobStatus = 8 "job status",
    /// Waits for a job, for at most as long as the message says.
    JobWait = 9 "job wait",
    /// Gives a job up.
    JobCancel = 10 "job cancel",
    /// A host begins to use the worker for jobs: those before have ended when this is answered.
    JobAttach = 12 "job attach",
    /// What the worker counted; the answer is a metrics message.
    Metrics = 11 "metrics",
}

impl Op {
    /// Whether it is about jobs, which somebody else than the block service answers.
    pub fn is_job(self) -> bool {
        matches!(self, Op::JobAttach | Op::JobStart | Op::JobStatus | Op::JobWait | Op::JobCancel)
    }
}
