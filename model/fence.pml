/*
 * The fence of one user, as migrations/0005 and package tombstones build it:
 * writers, the erasure, its crashes, its lift, late writers, and a database
 * that is rolled back under all of them. Run by "make model".
 *
 * What a writer does is what PostgreSQL does for it: the guard takes the user's
 * advisory lock (shared), then looks in a statement of its own; the commit
 * makes the row visible first and gives the lock up afterwards. The erasure
 * commits "fencing" without the lock, drains with the lock held exclusively,
 * commits "fenced", buries the sessions, deletes, counts, destroys the key,
 * lifts. Every step of it can be cut off and begun again.
 *
 * Words are old (spoken before the erasure ended, in a session that memd knew or
 * in one that it never saw, and held by some late writer) or new. What must hold, always:
 *
 *   P1  no row of the user's commits while the fence is up (fenced);
 *   P2  after the lift no old word is there, however late it comes;
 *   P3  the key is destroyed only when the tables hold nothing of the user;
 *   P4  a rolled-back database serves nobody before the ledger was replayed,
 *       and afterwards holds no old word;
 *   P5  the erasure ends (checked separately, as a never claim, with weak
 *       fairness, without crashes and rollbacks).
 *
 * Each of the macros NO_LOCK, NO_RECHECK, LOCK_FIRST_COMMIT_LATER,
 * NO_ERASED_BEFORE, NO_BURY, NO_GATE takes one part of the design away; the
 * run must then fail.
 */

#ifndef WRITERS
#define WRITERS 2
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 1
#endif

mtype = { none, fencing, fenced, lifted };
mtype = { sFence, sDrain, sBury, sDelete, sVerify, sShred, sLift, sDone };

/* The database, committed state. */
mtype fence = none;
bool buried = false;        /* tombstone of the session that the old words are from */
bool erasedBefore = false;  /* source times before the erasure are refused */
byte oldRows = 0;
byte newRows = 0;
mtype step = sFence;        /* the erasure's journal */

/* Advisory lock of the user. */
byte shared = 0;
bool exclusive = false;

/* Outside the database. */
bool keyGone = false;       /* the user's keys, in the KMS's sense */
bool claimed = false;       /* somebody was told that the erasure is done */
bool ledgerErased = false;  /* the ledger says that this user was erased */
bool gateClosed = false;    /* nobody is served */

/* A backup, and how often things may still go wrong. */
bool haveBackup = false;
byte bOld = 0; byte bNew = 0; mtype bFence = none; bool bBuried = false; bool bErasedBefore = false; mtype bStep = sFence;
byte crashes = CRASHES;
byte rollbacks = ROLLBACKS;

/* Transactions under way; a rollback cuts all of them off. */
byte era = 0;

/* Without the lock, the erasure takes it for granted that nobody writes. */
#ifdef NO_LOCK
#define DRAINED fence = fenced; step = sBury
#else
#define DRAINED skip /* the lock was lost in a crash: begin again */
#endif

#define refused ((fence == fencing || fence == fenced) || (isOld && seen && buried) || (isOld && erasedBefore && !dated))

/* A writer makes up to two rows, of whatever age, at whatever time. */
active [WRITERS] proctype Writer() {
    bool isOld;
    bool seen;
    bool dated;
    byte begun;
    byte tries = 0;
again:
    do
    :: tries == 2 -> break
    :: tries < 2 ->
        tries++;
        if
        :: isOld = true; seen = true; dated = false    /* from a session that memd knew */
        :: isOld = true; seen = true; dated = true     /* likewise, with a wrong, later time */
        :: isOld = true; seen = false; dated = false   /* from one that it never saw */
        :: isOld = false; seen = false; dated = false
        fi;
#ifdef NO_GATE
        begun = era;
#else
        atomic { !gateClosed -> begun = era };
#endif
#ifdef NO_RECHECK
        /* Looks before it has the lock, and never again. */
        if
        :: refused -> goto again
        :: else
        fi;
#endif
#ifndef NO_LOCK
        atomic { !exclusive || era != begun ->
            if
            :: era == begun -> shared++
            :: else -> goto again /* its connection broke with the rollback */
            fi
        };
#endif
#ifdef LOCK_FIRST_COMMIT_LATER
        /* Gives the lock up before it commits. */
        atomic {
            if
            :: era == begun -> shared--
            :: else -> goto again
            fi
        };
#endif
#ifndef NO_RECHECK
        atomic {
            if
            :: era != begun -> goto again
            :: era == begun && refused ->
#if !defined(NO_LOCK) && !defined(LOCK_FIRST_COMMIT_LATER)
                shared--;
#endif
                goto again
            :: else
            fi
        };
#endif
        /* Commit: visible from here on. */
        atomic {
            if
            :: era != begun -> goto again
            :: else ->
                assert(fence != fenced);                /* P1 */
                if
                :: isOld -> if :: oldRows < 3 -> oldRows++ :: else fi
                :: else  -> if :: newRows < 3 -> newRows++ :: else fi
                fi
            fi
        };
        /* The lock goes with the end of the transaction. */
#if !defined(NO_LOCK) && !defined(LOCK_FIRST_COMMIT_LATER)
        atomic {
            if
            :: era == begun -> shared--
            :: else
            fi
        }
#endif
    od
}

/* The erasure runs from its journal; a crash loses what was not committed. */
active proctype Eraser() {
    byte begun;
    do
    :: atomic { step == sDone && rollbacks == 0 && !gateClosed -> break }
    :: atomic { !gateClosed && step == sFence -> fence = fencing; step = sDrain }
    :: !gateClosed && step == sDrain ->
        begun = era;
#ifdef NO_LOCK
        skip;
#else
        atomic { (shared == 0 && !exclusive) || era != begun ->
            if
            :: era == begun -> exclusive = true
            :: else
            fi
        };
#endif
        atomic {
            if
            :: era == begun && step == sDrain && exclusive -> fence = fenced; step = sBury; exclusive = false
            :: era == begun && step == sDrain && !exclusive -> DRAINED
            :: era == begun && step != sDrain -> exclusive = false
            :: era != begun
            fi
        }
#ifdef NO_BURY
    :: atomic { !gateClosed && step == sBury -> step = sDelete }
#else
    :: atomic { !gateClosed && step == sBury -> buried = true; step = sDelete }
#endif
    :: atomic { !gateClosed && step == sDelete -> oldRows = 0; newRows = 0; step = sVerify }
    :: atomic { !gateClosed && step == sVerify ->
            if
            :: oldRows + newRows == 0 -> step = sShred
            :: else -> step = sDelete
            fi
        }
    :: !gateClosed && step == sShred ->
        /* The ledger first: it must know before anything irreversible. */
        ledgerErased = true;
        atomic {
            if
            :: step == sShred && !gateClosed ->
                assert(oldRows + newRows == 0);         /* P3 */
                keyGone = true;
                step = sLift
            :: else
            fi
        }
#ifdef NO_ERASED_BEFORE
    :: atomic { !gateClosed && step == sLift -> fence = lifted; step = sDone; claimed = true }
#else
    :: atomic { !gateClosed && step == sLift -> fence = lifted; erasedBefore = true; step = sDone; claimed = true }
#endif
    /* A crash between any two steps: a lock that was held is gone, the journal stays. */
    :: atomic { crashes > 0 && step != sDone -> crashes--; exclusive = false }
    od
}

/* A backup is taken at some moment, and the database goes back to it at another. */
active proctype Rollback() {
    if
    :: rollbacks == 0 -> goto end
    :: rollbacks > 0
    fi;
    atomic {
        haveBackup = true; bOld = oldRows; bNew = newRows; bFence = fence; bBuried = buried;
        bErasedBefore = erasedBefore; bStep = step
    };
    /* The restore breaks every connection; the gate closes with the first new one. */
    atomic {
        era++;
        shared = 0; exclusive = false;
        oldRows = bOld; newRows = bNew; fence = bFence; buried = bBuried; erasedBefore = bErasedBefore; step = bStep;
        gateClosed = true;
        rollbacks--
    };
    /* Replay, by tombstone: what the ledger calls erased is erased here too. */
#ifndef NO_GATE
    atomic {
        if
        :: ledgerErased -> oldRows = 0; newRows = 0; buried = true; erasedBefore = true;
            if
            :: keyGone -> fence = lifted; step = sDone
            :: else
            fi
        :: else
        fi
    };
#endif
    gateClosed = false;
end:
    skip
}

/* Watches, at every moment, what must never be seen. */
active proctype Monitor() {
    end:
    do
    :: atomic { (fence == lifted || claimed) && oldRows > 0 && !gateClosed -> assert(false) }   /* P2, P4 */
    od
}

#ifdef LIVENESS
ltl ends { <> (step == sDone) }   /* P5 */
#endif
