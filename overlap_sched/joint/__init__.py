"""What forward saves for backward, chosen for a memory limit or a step limit: on AOTAutograd's joint graph.

    found = fit_joint(joint, partitioner, judge, Question(memory_limit="40GiB"))
    found.best.forward, found.best.backward

torch's partitioner makes every cut; here it is told which operators are to run again in backward, and what comes out is
priced by our judges. :mod:`overlap_sched.inductor.partitioning` makes a plug-in of it.
"""

from overlap_sched.fit.answer import Question
from overlap_sched.joint.search import JointCut, JointSearchResult, Judge, Marks, fit_joint

__all__ = ["JointCut", "JointSearchResult", "Judge", "Marks", "Question", "fit_joint"]
