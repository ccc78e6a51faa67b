// What a command line gets wrong is told in a sentence, with the word that was meant.
// RUN: not isthmus-opt %s -p simplfy 2>&1 | filecheck %s --check-prefix=NAME
// RUN: not isthmus-opt %s -p "partition{" 2>&1 | filecheck %s --check-prefix=SYNTAX
// RUN: not isthmus-opt %s -p "fuse{contractions=ownn}" 2>&1 | filecheck %s --check-prefix=WORD
// RUN: not isthmus-opt %s --load %S/no_such_file.py 2>&1 | filecheck %s --check-prefix=LOAD
// RUN: not isthmus-opt %s -t llvm 2>&1 | filecheck %s --check-prefix=KERNELS
// RUN: isthmus-opt %s | filecheck %s --check-prefix=EMPTY

// NAME:       error: there is no pass 'simplfy'; did you mean 'simplify'?
// SYNTAX-NOT: Traceback
// SYNTAX:     Expected argument name here
// WORD:       error: fuse{contractions=ownn} has no meaning
// WORD-NEXT:  did you mean 'own'?
// LOAD:       error: there is no file
// KERNELS:    error: nothing to print as llvm: no kernel is made yet
// EMPTY:      builtin.module {
// EMPTY-NEXT: }
